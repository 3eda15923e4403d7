/* The optional compiled core: what is done once a message.

Each function has a twin in Python that makes the same bytes (docs/adr/0007-compiled-core.md) and is
called when one here answers None: for whatever is not plain, and instead of every error. Nothing is
read or written outside of the buffers that are passed: every offset and length is checked against
their sizes here. Messages and index here, puts in _puts.c. */

#include "_core.h"

#define VERSION 5 /* of what core.py expects: an extension that was built before is not used */
#define MIN_RECORD_SIZE 91
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define MAX_PROPERTIES 32767

/* What Message.create takes beside fields: the values of these properties. */
enum { KEYS = FIELDS, UNIQ_KEY, TAGS, ARGUMENTS };
static const char *const texts[ARGUMENTS + 3] = {
    "topic", "body", "queue_id", "properties", "flag", "sys_flag", "born_timestamp_ms", "born_host",
    "reconsume_times", "prepared_transaction_offset", "keys", "uniq_key", "tags", "KEYS",
    "UNIQ_KEY", "TAGS"
};
static PyObject *interned[ARGUMENTS + 3]; /* the texts */
PyTypeObject *message_type;
Py_ssize_t field_offsets[FIELDS];
PyObject *crc32, *large_crc32, *zero;
static PyObject *create_in_python, *localhost;

Py_ssize_t find_place(PyTypeObject *type, const char *name) {
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL)
        return 0;
    PyMemberDef *member = NULL;
    if (Py_TYPE(found) == &PyMemberDescr_Type && PyType_IsSubtype(type, PyDescr_TYPE(found)))
        member = ((PyMemberDescrObject *)found)->d_member;
    Py_DECREF(found); /* the type has it */
    if (member == NULL || member->type != T_OBJECT_EX)
        return PyErr_Format(PyExc_TypeError, "%s.%s: no slot", type->tp_name, name), 0;
    return member->offset;
}

static PyObject *configure(PyObject *self, PyObject *args) {
    PyObject *type, *function, *large, *create, *host;
    if (!PyArg_ParseTuple(args, "O!OOOS:configure", &PyType_Type, &type, &function, &large, &create,
                          &host))
        return NULL;
    Py_ssize_t places[FIELDS];
    for (int field = 0; field < FIELDS; field++)
        if ((places[field] = find_place((PyTypeObject *)type, texts[field])) == 0)
            return NULL;
    memcpy(field_offsets, places, sizeof places);
    for (int i = 0; i < ARGUMENTS + 3; i++)
        Py_XSETREF(interned[i], PyUnicode_InternFromString(texts[i]));
    Py_XSETREF(zero, PyLong_FromLong(0));
    Py_XSETREF(create_in_python, Py_NewRef(create));
    Py_XSETREF(localhost, Py_NewRef(host));
    Py_XSETREF(message_type, (PyTypeObject *)Py_NewRef(type));
    Py_XSETREF(crc32, Py_NewRef(function));
    Py_XSETREF(large_crc32, Py_NewRef(large));
    Py_RETURN_NONE;
}

/* Properties, and messages from ordinary values. */
typedef struct {
    Py_ssize_t size;
    char data[MAX_PROPERTIES];
} Properties;

/* Add a property, unless its value is empty; 0 when it is not plain. */
static int add_property(Properties *to, PyObject *name, PyObject *value) {
    if (!PyUnicode_CheckExact(name) || !PyUnicode_CheckExact(value) ||
        !PyUnicode_IS_COMPACT_ASCII(name) || !PyUnicode_IS_COMPACT_ASCII(value))
        return 0;
    Py_ssize_t name_size = PyUnicode_GET_LENGTH(name), value_size = PyUnicode_GET_LENGTH(value);
    const char *name_text = PyUnicode_DATA(name), *value_text = PyUnicode_DATA(value);
    if (name_size == 0 || memchr(name_text, 1, (size_t)name_size) != NULL ||
        memchr(name_text, 2, (size_t)name_size) != NULL ||
        memchr(value_text, 2, (size_t)value_size) != NULL)
        return 0;
    if (value_size == 0 || to->size + name_size + value_size + 2 > MAX_PROPERTIES)
        return value_size == 0;
    char *end = to->data + to->size;
    memcpy(end, name_text, (size_t)name_size);
    end[name_size] = 1;
    memcpy(end + name_size + 1, value_text, (size_t)value_size);
    end[name_size + 1 + value_size] = 2;
    to->size += name_size + value_size + 2;
    return 1;
}

/* Add the table and what else becomes properties; 0 when it is not plain. */
static int add_values(Properties *to, PyObject *const *values) {
    PyObject *table = values[PROPERTIES], *name, *value;
    Py_ssize_t place = 0;
    to->size = 0;
    if (table != NULL && !PyDict_CheckExact(table))
        return 0;
    while (table != NULL && PyDict_Next(table, &place, &name, &value))
        if (!add_property(to, name, value))
            return 0;
    for (int i = KEYS; i < ARGUMENTS; i++) {
        if ((value = values[i]) == NULL || value == Py_None)
            continue;
        if (i == KEYS) { /* one, or none */
            if (!PyTuple_CheckExact(value) && !PyList_CheckExact(value))
                return 0;
            if (PySequence_Fast_GET_SIZE(value) == 0)
                continue;
            value = PySequence_Fast_GET_ITEM(value, 0);
            if (PySequence_Fast_GET_SIZE(values[i]) > 1 || !PyUnicode_CheckExact(value) ||
                PyUnicode_FindChar(value, ' ', 0, PyUnicode_GET_LENGTH(value), 1) >= 0)
                return 0;
        }
        name = interned[i + 3]; /* it takes the place of the table's */
        if ((table != NULL && PyDict_Contains(table, name) != 0) || !add_property(to, name, value))
            return 0;
    }
    return 1;
}

static PyObject *encode_properties(PyObject *self, PyObject *table) {
    PyObject *values[ARGUMENTS] = {[PROPERTIES] = table};
    Properties encoded;
    return add_values(&encoded, values) ? PyBytes_FromStringAndSize(encoded.data, encoded.size)
                                        : Py_NewRef(Py_None);
}

static PyObject *create_message(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    PyObject *values[ARGUMENTS] = {NULL};
    Properties encoded;
    int is_plain = count <= 2 && message_type != NULL;
    for (Py_ssize_t i = 0; is_plain && i < count; i++)
        values[i] = args[i];
    for (Py_ssize_t i = 0; is_plain && names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        int place = 0;
        while (place < ARGUMENTS && interned[place] != PyTuple_GET_ITEM(names, i))
            place++;
        is_plain = place < ARGUMENTS && values[place] == NULL;
        if (is_plain)
            values[place] = args[count + i];
    }
    if (values[PROPERTIES] == Py_None)
        values[PROPERTIES] = NULL;
    if (!is_plain || values[TOPIC] == NULL || values[BODY] == NULL || values[BORN_HOST] != NULL ||
        !PyBytes_CheckExact(values[BODY]) || !add_values(&encoded, values))
        return PyObject_Vectorcall(create_in_python, args, (size_t)count, names);
    for (int field = 0; field < FIELDS; field++)
        values[field] = values[field] != NULL ? values[field] : zero;
    values[BORN_HOST] = localhost;
    values[PROPERTIES] = PyBytes_FromStringAndSize(encoded.data, encoded.size);
    if (values[PROPERTIES] == NULL)
        return NULL;
    PyObject *message = PyObject_Vectorcall((PyObject *)message_type, values, FIELDS, NULL);
    Py_DECREF(values[PROPERTIES]);
    return message;
}

/* Index entries. */
typedef struct {
    const uint8_t *data;
    Py_ssize_t size; /* 0: not there */
} Value;

/* hash * 31^size + String.hashCode of a text; all its bits are added to *bits. */
static uint32_t hash_text(uint32_t hash, Value text, uint8_t *bits) {
    for (Py_ssize_t i = 0; i < text.size; i++) {
        hash = 31 * hash + text.data[i];
        *bits |= text.data[i];
    }
    return hash;
}

/* The last value of UNIQ_KEY, KEYS and TAGS that is not empty. */
static void find_values(const uint8_t *data, Py_ssize_t size, Value *values) {
    static const char *const starts[] = {"UNIQ_KEY\x01", "KEYS\x01", "TAGS\x01"};
    const uint8_t *end = data + size;
    while (data < end) {
        const uint8_t *stop = memchr(data, 2, (size_t)(end - data));
        Py_ssize_t length = (stop == NULL ? end : stop) - data;
        for (int i = 0; i < 3; i++) {
            Py_ssize_t name = i == 0 ? 9 : 5;
            if (length > name && memcmp(data, starts[i], (size_t)name) == 0)
                values[i] = (Value){data + name, length - name};
        }
        data += length + 1;
    }
}

/* Columns of int64 rows (or positions) and int32 hashes that grow. */
typedef struct {
    int64_t *rows;
    int32_t *hashes;
    Py_ssize_t count, room;
} Entries;

static int add_entry(Entries *entries, Py_ssize_t row, uint32_t hash) {
    if (entries->count == entries->room) {
        Py_ssize_t room = 2 * entries->room + 64;
        int64_t *rows = PyMem_Realloc(entries->rows, (size_t)room * sizeof *rows);
        int32_t *hashes = PyMem_Realloc(entries->hashes, (size_t)room * sizeof *hashes);
        entries->rows = rows != NULL ? rows : entries->rows;
        entries->hashes = hashes != NULL ? hashes : entries->hashes;
        if (rows == NULL || hashes == NULL)
            return PyErr_NoMemory(), -1;
        entries->room = room;
    }
    if (hash > 0x7FFFFFFF) /* the absolute value, 0 of the smallest number */
        hash = (0u - hash) & 0x7FFFFFFF;
    entries->rows[entries->count] = row;
    entries->hashes[entries->count++] = (int32_t)hash;
    return 0;
}

/* 1; 0 for text that is not ASCII; -1 without memory. before: of `topic#` and `topic#T#`. */
static int add_entries(Entries *entries, Py_ssize_t row, PyObject *properties,
                       const uint32_t *before, int64_t *code) {
    Value values[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
    uint8_t bits = 0;
    find_values((uint8_t *)PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties), values);
    Value uniq = values[0], keys = values[1], tags = values[2];
    *code = (int32_t)hash_text(0, tags, &bits);
    if (uniq.size && add_entry(entries, row, hash_text(before[0], uniq, &bits)) < 0)
        return -1;
    while (keys.size > 0) {
        const uint8_t *space = memchr(keys.data, ' ', (size_t)keys.size);
        Value word = {keys.data, space == NULL ? keys.size : space - keys.data};
        keys.data += word.size + 1, keys.size -= word.size + 1;
        if (word.size && add_entry(entries, row, hash_text(before[0], word, &bits)) < 0)
            return -1;
    }
    if (tags.size && add_entry(entries, row, hash_text(before[1], tags, &bits)) < 0)
        return -1;
    return bits < 0x80;
}

static PyObject *index_entries(PyObject *self, PyObject *args) {
    PyObject *properties, *result = NULL;
    Py_buffer numbers, prefixes;
    if (!PyArg_ParseTuple(args, "O!y*y*:index_entries", &PyList_Type, &properties, &numbers,
                          &prefixes))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(properties), topics = prefixes.len / 8;
    Entries entries = {NULL, NULL, 0, 0};
    PyObject *codes = PyBytes_FromStringAndSize(NULL, count * 8);
    int is_plain = codes == NULL ? -1 : count == numbers.len / 8;
    for (Py_ssize_t i = 0; is_plain > 0 && i < count; i++) {
        PyObject *data = PyList_GET_ITEM(properties, i);
        int64_t number, code;
        uint32_t before[2];
        memcpy(&number, (char *)numbers.buf + 8 * i, 8);
        is_plain = number >= 0 && number < topics && PyBytes_CheckExact(data);
        if (!is_plain)
            break;
        memcpy(before, (char *)prefixes.buf + 8 * number, 8);
        is_plain = add_entries(&entries, i, data, before, &code);
        memcpy(PyBytes_AS_STRING(codes) + 8 * i, &code, 8);
    }
    if (is_plain > 0)
        result = Py_BuildValue( /* bytes of NULL and 0 are empty */
            "(ONN)", codes, PyBytes_FromStringAndSize((char *)entries.rows, entries.count * 8),
            PyBytes_FromStringAndSize((char *)entries.hashes, entries.count * 4)
        );
    else if (is_plain == 0)
        result = Py_NewRef(Py_None);
    Py_XDECREF(codes);
    PyMem_Free(entries.rows);
    PyMem_Free(entries.hashes);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&prefixes);
    return result;
}

/* Positions of the records from a position on, as int64, and the byte behind the last of them. */
static PyObject *walk_records(PyObject *self, PyObject *args) {
    Py_buffer buffer;
    Py_ssize_t position, limit;
    if (!PyArg_ParseTuple(args, "y*nn:walk_records", &buffer, &position, &limit))
        return NULL;
    Entries found = {NULL, NULL, 0, 0};
    PyObject *result = NULL;
    int is_good = position >= 0 && position <= limit && limit <= buffer.len;
    while (is_good && limit - position >= MIN_RECORD_SIZE) {
        const uint8_t *record = (const uint8_t *)buffer.buf + position;
        uint32_t magic = get32(record + 4);
        int32_t size = (int32_t)get32(record);
        if ((magic != MAGIC_V1 && magic != MAGIC_V2) || size < MIN_RECORD_SIZE ||
            size > limit - position)
            break;
        is_good = add_entry(&found, position, 0) == 0;
        position += size;
    }
    if (is_good)
        result = Py_BuildValue("(Nn)", PyBytes_FromStringAndSize((char *)found.rows, found.count * 8),
                               position);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a range outside of the buffer");
    PyMem_Free(found.rows);
    PyMem_Free(found.hashes);
    PyBuffer_Release(&buffer);
    return result;
}

/* The index file. */
static PyObject *put_items(PyObject *self, PyObject *args) {
    Py_buffer file, hashes, offsets, times;
    long long slots;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "w*Ly*y*y*:put_items", &file, &slots, &hashes, &offsets, &times))
        return NULL;
    uint8_t *data = file.buf;
    Py_ssize_t count = hashes.len / 4, done = 0;
    int64_t max_items = slots > 0 && slots <= INT32_MAX ? (file.len - 40 - slots * 4) / 20 : -1;
    if (max_items < 0 || max_items > INT32_MAX || file.len < 40 || offsets.len / 8 != count ||
        times.len / 8 != count || (int32_t)get32(data + 32) < 0 || (int32_t)get32(data + 36) < 0) {
        result = Py_NewRef(Py_None);
        goto end;
    }
    int64_t begin_time = (int64_t)((uint64_t)get32(data) << 32 | get32(data + 4));
    int64_t used_slots = get32(data + 32), number = get32(data + 36) < 1 ? 1 : get32(data + 36);
    uint8_t header[40], *items = data + 40 + slots * 4;
    memcpy(header, data, 40);
    for (; done < count && number < max_items; done++, number++) {
        int32_t hash;
        int64_t offset, time;
        memcpy(&hash, (char *)hashes.buf + 4 * done, 4);
        memcpy(&offset, (char *)offsets.buf + 8 * done, 8);
        memcpy(&time, (char *)times.buf + 8 * done, 8);
        int64_t place = hash % slots;
        uint8_t *slot = data + 40 + 4 * (place < 0 ? place + slots : place);
        uint8_t *item = items + 20 * number;
        int32_t previous = (int32_t)get32(slot);
        if (previous <= 0 || previous >= number)
            previous = 0;
        int is_late = begin_time > 0 && time > begin_time;
        uint64_t late_s = is_late ? ((uint64_t)time - (uint64_t)begin_time) / 1000 : 0;
        put32(item, (uint32_t)hash);
        put64(item + 4, (uint64_t)offset);
        put32(item + 12, late_s > INT32_MAX ? INT32_MAX : (uint32_t)late_s);
        put32(item + 16, (uint32_t)previous);
        put32(slot, (uint32_t)number);
        used_slots += previous == 0;
        if (number <= 1) {
            put64(header, (uint64_t)time), put64(header + 16, (uint64_t)offset);
            begin_time = time;
        }
        put64(header + 8, (uint64_t)time), put64(header + 24, (uint64_t)offset);
    }
    if (done > 0) {
        put32(header + 32, (uint32_t)used_slots);
        put32(header + 36, (uint32_t)number);
        memcpy(data, header, 40);
    }
    result = PyLong_FromSsize_t(done);
end:
    PyBuffer_Release(&file);
    PyBuffer_Release(&hashes);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&times);
    return result;
}

#define FAST (PyCFunction)(void (*)(void))
static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, NULL},
    {"configure_puts", configure_puts, METH_VARARGS, NULL},
    {"append_records", FAST append_records, METH_FASTCALL, NULL},
    {"put_message", FAST put_message, METH_FASTCALL, NULL},
    {"encode_properties", encode_properties, METH_O, NULL},
    {"create_message", FAST create_message, METH_FASTCALL | METH_KEYWORDS, "Message.create"},
    {"index_entries", index_entries, METH_VARARGS, NULL},
    {"walk_records", walk_records, METH_VARARGS, NULL},
    {"put_items", put_items, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "See _core.pyi.", -1, methods};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *made = PyModule_Create(&module), *put = NULL, *method = NULL;
    /* A function in Python becomes a method in a class; this one is made to. */
    if (made == NULL || PyModule_AddIntConstant(made, "VERSION", VERSION) < 0 ||
        (put = PyObject_GetAttrString(made, "put_message")) == NULL ||
        (method = PyInstanceMethod_New(put)) == NULL ||
        PyObject_SetAttrString(made, "put_message", method) < 0)
        Py_CLEAR(made);
    Py_XDECREF(put);
    Py_XDECREF(method);
    return made;
}
