/* The optional compiled core: what is done once a message.

Each function has a twin in Python that makes the same bytes (docs/adr/0007-compiled-core.md) and is
called when one here answers None: for whatever is not plain, and instead of every error. Nothing is
read or written outside of the buffers that are passed: every offset and length is checked against
their sizes here. Messages and the walk here, puts in _puts.c, both
indexes in _index.c. */

#include "_core.h"

#define VERSION 6 /* of what core.py expects: an extension that was built before is not used */
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

/* Bytes of a mapped log, copied without the GIL: a page that is not there stops this thread alone. */
static PyObject *copy_runs(PyObject *self, PyObject *args) {
    Py_buffer view, starts, ends;
    long long base;
    if (!PyArg_ParseTuple(args, "y*Ly*y*:copy_runs", &view, &base, &starts, &ends))
        return NULL;
    Py_ssize_t count = starts.len / 8;
    int64_t total = 0, start, end;
    int is_good = base >= 0 && ends.len / 8 == count;
    for (Py_ssize_t i = 0; is_good && i < count; i++) {
        memcpy(&start, (char *)starts.buf + 8 * i, 8);
        memcpy(&end, (char *)ends.buf + 8 * i, 8);
        is_good = start >= base && start <= end && end - base <= view.len &&
            end - start <= PY_SSIZE_T_MAX - total;
        total += is_good ? end - start : 0;
    }
    PyObject *result = is_good ? PyByteArray_FromStringAndSize(NULL, total) : Py_NewRef(Py_None);
    if (is_good && result != NULL) {
        char *to = PyByteArray_AS_STRING(result), *stop = to + total;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++) {
            memcpy(&start, (char *)starts.buf + 8 * i, 8);
            memcpy(&end, (char *)ends.buf + 8 * i, 8);
            if (start < base || start > end || end - base > view.len || end - start > stop - to)
                break; /* changed meanwhile */
            memcpy(to, (char *)view.buf + (start - base), (size_t)(end - start));
            to += end - start;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&ends);
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
    {"copy_runs", copy_runs, METH_VARARGS, NULL},
    {"walk_records", walk_records, METH_VARARGS, NULL},
    {"put_items", put_items, METH_VARARGS, NULL},
    {"key_hashes", key_hashes, METH_VARARGS, NULL},
    {"put_tiered_items", put_tiered_items, METH_VARARGS, NULL},
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
