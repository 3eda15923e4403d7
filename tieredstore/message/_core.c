/* The optional compiled core: what is done once a message.

Each function has a twin in Python that makes the same bytes (docs/adr/0007-compiled-core.md) and is
called when a function here answers None: for whatever is not plain, and instead of every error.
Nothing is read or written outside of the buffers that are passed: every offset and length is
checked against their sizes here. The GIL is held throughout; locks, clocks and the state of a store
are Python's. */

#define _GNU_SOURCE /* memmem */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define VERSION 3 /* of what core.py expects: an extension that was built before is not used */
#define HEAD_SIZE 88 /* in front of the body, with two IPv4 hosts */
#define MIN_RECORD_SIZE 91
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define MAX_ROW_PROPERTIES 4096
#define MAX_PROPERTIES 32767
#define RELEASING 5120 /* message/crc.py */
#define NOT_PLAIN (0x1 << 4 | 0x1 << 5 | 0x3 << 2 | 0x1 << 7)

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t get64(const uint8_t *p) {
    return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static void put32(uint8_t *p, uint32_t value) {
    p[0] = (uint8_t)(value >> 24), p[1] = (uint8_t)(value >> 16);
    p[2] = (uint8_t)(value >> 8), p[3] = (uint8_t)value;
}

static void put64(uint8_t *p, uint64_t value) {
    put32(p, (uint32_t)(value >> 32));
    put32(p + 4, (uint32_t)value);
}

/* Whether a number is an int of so many bits; then `value` is it. */
static int read_int(PyObject *number, int bits, int64_t *value) {
    int overflow = 0;
    if (number == NULL || !PyLong_Check(number))
        return 0;
    *value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow)
        return 0;
    return bits == 64 || (*value >= INT32_MIN && *value <= INT32_MAX);
}

static int contains(PyObject *data, const char *text) {
    return memmem(PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data), text, strlen(text)) !=
           NULL;
}

/* Messages: a Struct whose fields lie at fixed places. */

enum field {
    TOPIC, BODY, QUEUE_ID, PROPERTIES, FLAG, SYS_FLAG, BORN_TIMESTAMP, BORN_HOST, RECONSUME_TIMES,
    PREPARED_OFFSET, FIELDS
};
static const char *const field_names[FIELDS] = {
    "topic", "body", "queue_id", "properties", "flag", "sys_flag", "born_timestamp_ms", "born_host",
    "reconsume_times", "prepared_transaction_offset"
};
static PyTypeObject *message_type;
static Py_ssize_t field_offsets[FIELDS];
static PyObject *crc32, *large_crc32; /* the latter of more than RELEASING bytes */

static PyObject *get_field(PyObject *message, enum field field) {
    return *(PyObject **)((char *)message + field_offsets[field]); /* NULL when it is not set */
}

static PyObject *configure(PyObject *self, PyObject *args) {
    PyObject *type, *function, *large;
    if (!PyArg_ParseTuple(args, "O!OO:configure", &PyType_Type, &type, &function, &large))
        return NULL;
    for (int field = 0; field < FIELDS; field++) {
        PyObject *found = PyObject_GetAttrString(type, field_names[field]);
        if (found == NULL)
            return NULL;
        PyMemberDef *member = NULL;
        if (Py_TYPE(found) == &PyMemberDescr_Type && PyDescr_TYPE(found) == (PyTypeObject *)type)
            member = ((PyMemberDescrObject *)found)->d_member;
        Py_DECREF(found); /* the type has it */
        if (member == NULL || member->type != T_OBJECT_EX)
            return PyErr_Format(PyExc_TypeError, "%s: no field of a Struct", field_names[field]);
        field_offsets[field] = member->offset;
    }
    Py_XSETREF(message_type, (PyTypeObject *)Py_NewRef(type));
    Py_XSETREF(crc32, Py_NewRef(function));
    Py_XSETREF(large_crc32, Py_NewRef(large));
    Py_RETURN_NONE;
}

/* Records. */

typedef struct {
    PyObject *body, *properties, *born_host; /* owned: other threads may change the message */
    int64_t flag, sys_flag, born_timestamp, reconsume_times, prepared_offset;
    uint32_t crc;
    Py_ssize_t size;
} Record;

static void release_record(Record *record) {
    Py_XDECREF(record->body);
    Py_XDECREF(record->properties);
    Py_XDECREF(record->born_host);
}

/* What a message becomes: 1 when it is plain, else 0; -1 with an exception. `record` is to be
released whatever the answer is. template_size: of head and topic field. */
static int read_message(
    PyObject *message, Py_ssize_t template_size, Py_ssize_t max_body, Record *record
) {
    memset(record, 0, sizeof *record);
    if (Py_TYPE(message) != message_type)
        return 0;
    PyObject *body = get_field(message, BODY), *properties = get_field(message, PROPERTIES);
    PyObject *born_host = get_field(message, BORN_HOST);
    if (body == NULL || !PyBytes_CheckExact(body) || PyBytes_GET_SIZE(body) > max_body ||
        properties == NULL || !PyBytes_CheckExact(properties) ||
        PyBytes_GET_SIZE(properties) > MAX_ROW_PROPERTIES || born_host == NULL ||
        !PyBytes_CheckExact(born_host) || PyBytes_GET_SIZE(born_host) != 8)
        return 0;
    record->body = Py_NewRef(body);
    record->properties = Py_NewRef(properties), record->born_host = Py_NewRef(born_host);
    if (!read_int(get_field(message, FLAG), 32, &record->flag) ||
        !read_int(get_field(message, SYS_FLAG), 32, &record->sys_flag) ||
        !read_int(get_field(message, BORN_TIMESTAMP), 64, &record->born_timestamp) ||
        !read_int(get_field(message, RECONSUME_TIMES), 32, &record->reconsume_times) ||
        !read_int(get_field(message, PREPARED_OFFSET), 64, &record->prepared_offset) ||
        record->sys_flag & NOT_PLAIN ||
        contains(properties, "INNER_"))
        return 0;
    record->size = template_size + PyBytes_GET_SIZE(body) + 2 + PyBytes_GET_SIZE(properties);
    PyObject *crc = PyObject_CallOneArg(PyBytes_GET_SIZE(body) > RELEASING ? large_crc32 : crc32, body);
    if (crc == NULL)
        return -1;
    record->crc = (uint32_t)PyLong_AsUnsignedLongMask(crc) & 0x7FFFFFFF;
    Py_DECREF(crc);
    return PyErr_Occurred() ? -1 : 1;
}

static void write_record(
    uint8_t *to, const uint8_t *template, Py_ssize_t template_size, const Record *record,
    int64_t queue_offset, int64_t position, int64_t timestamp
) {
    size_t body_size = (size_t)PyBytes_GET_SIZE(record->body);
    size_t topic_size = (size_t)template_size - HEAD_SIZE, properties_size = (size_t)PyBytes_GET_SIZE(record->properties);
    memcpy(to, template, HEAD_SIZE);
    put32(to, (uint32_t)record->size);
    put32(to + 8, record->crc);
    put32(to + 16, (uint32_t)record->flag);
    put64(to + 20, (uint64_t)queue_offset);
    put64(to + 28, (uint64_t)position);
    put32(to + 36, (uint32_t)record->sys_flag);
    put64(to + 40, (uint64_t)record->born_timestamp);
    memcpy(to + 48, PyBytes_AS_STRING(record->born_host), 8);
    put64(to + 56, (uint64_t)timestamp);
    put32(to + 72, (uint32_t)record->reconsume_times);
    put64(to + 76, (uint64_t)record->prepared_offset);
    put32(to + 84, (uint32_t)body_size);
    to += HEAD_SIZE;
    memcpy(to, PyBytes_AS_STRING(record->body), body_size);
    to += body_size;
    memcpy(to, template + HEAD_SIZE, topic_size);
    to += topic_size;
    to[0] = (uint8_t)(properties_size >> 8), to[1] = (uint8_t)properties_size;
    memcpy(to + 2, PyBytes_AS_STRING(record->properties), properties_size);
}

typedef struct {
    Py_buffer view;
    const uint8_t *template;
    Py_ssize_t template_size;
    int64_t inside, limit, max_body, queue_offset, position, timestamp;
} Append;

/* 1, and `view` is to be released; 0 when Python has to do it; -1 with an exception. */
static int begin_append(PyObject *const *args, Py_ssize_t count, Py_ssize_t wanted, Append *append) {
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, found %zd", wanted, count);
        return -1;
    }
    if (!read_int(args[1], 64, &append->inside) || !read_int(args[2], 64, &append->limit) ||
        !PyBytes_CheckExact(args[3]) || PyBytes_GET_SIZE(args[3]) < HEAD_SIZE + 1 ||
        PyBytes_GET_SIZE(args[3]) > HEAD_SIZE + 2 + 32767 ||
        !read_int(args[4], 32, &append->max_body) || !read_int(args[6], 64, &append->queue_offset) ||
        !read_int(args[7], 64, &append->position) || !read_int(args[8], 64, &append->timestamp) ||
        append->queue_offset < 0 || append->queue_offset > INT64_MAX / 2 || append->position < 0 ||
        append->position > INT64_MAX / 2 || message_type == NULL)
        return 0;
    append->template = (const uint8_t *)PyBytes_AS_STRING(args[3]);
    append->template_size = PyBytes_GET_SIZE(args[3]);
    if (PyObject_GetBuffer(args[0], &append->view, PyBUF_WRITABLE) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_BufferError)) /* read-only, as an empty log's */
            return -1;
        PyErr_Clear();
        return 0;
    }
    if (append->limit > append->view.len)
        append->limit = append->view.len;
    return 1;
}

/* Whether so many bytes fit behind those that are there. */
static int fits(const Append *append, int64_t size) {
    return append->inside >= 0 && append->inside <= append->limit &&
           size <= append->limit - append->inside;
}

static PyObject *append_record(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Append append;
    Record record;
    PyObject *result = NULL;
    int is_plain = begin_append(args, count, 9, &append);
    if (is_plain <= 0)
        return is_plain < 0 ? NULL : Py_NewRef(Py_None);
    is_plain = read_message(args[5], append.template_size, append.max_body, &record);
    if (is_plain > 0 && fits(&append, record.size)) {
        uint8_t *to = (uint8_t *)append.view.buf + append.inside;
        write_record(to, append.template, append.template_size, &record, append.queue_offset,
                     append.position, append.timestamp);
        PyObject *end = PyLong_FromLongLong(append.position + record.size);
        PyObject *head = PyBytes_FromStringAndSize((char *)to, HEAD_SIZE);
        if (end != NULL && head != NULL)
            result = PyTuple_Pack(3, end, head, record.properties);
        Py_XDECREF(end);
        Py_XDECREF(head);
    } else if (is_plain >= 0)
        result = Py_NewRef(Py_None);
    release_record(&record);
    PyBuffer_Release(&append.view);
    return result;
}

/* Read all messages of a batch; 1 when all are plain and of the queue, else 0; -1 with an
exception. `total`: bytes of their records. */
static int read_batch(
    PyObject *messages, const Append *append, PyObject *topic, int64_t queue_id, Record *records,
    int64_t *total
) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(messages); i++) {
        PyObject *message = PyTuple_GET_ITEM(messages, i);
        int is_plain = read_message(message, append->template_size, append->max_body, records + i);
        if (is_plain <= 0)
            return is_plain;
        PyObject *found = get_field(message, TOPIC);
        int64_t number;
        if (found != topic &&
            (found == NULL || !PyUnicode_CheckExact(found) || PyUnicode_Compare(found, topic) != 0))
            return 0;
        if (!read_int(get_field(message, QUEUE_ID), 32, &number) || number != queue_id)
            return 0;
        if (contains(records[i].properties, "DELAY\x01"))
            return 0;
        *total += records[i].size;
    }
    return 1;
}

/* The rows of records that were written: number, head and properties of each. */
static PyObject *make_rows(PyObject *number, const Record *records, Py_ssize_t count, uint8_t *at) {
    PyObject *rows = PyList_New(3 * count);
    for (Py_ssize_t i = 0; rows != NULL && i < count; i++) {
        PyObject *head = PyBytes_FromStringAndSize((char *)at, HEAD_SIZE);
        if (head == NULL) {
            Py_CLEAR(rows);
            break;
        }
        PyList_SET_ITEM(rows, 3 * i, Py_NewRef(number));
        PyList_SET_ITEM(rows, 3 * i + 1, head);
        PyList_SET_ITEM(rows, 3 * i + 2, Py_NewRef(records[i].properties));
        at += records[i].size;
    }
    return rows;
}

static PyObject *append_records(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Append append;
    PyObject *messages = NULL, *result = NULL;
    Record *records = NULL;
    int64_t total = 0;
    int is_plain = begin_append(args, count, 11, &append);
    if (is_plain <= 0)
        return is_plain < 0 ? NULL : Py_NewRef(Py_None);
    is_plain = -1;
    if (!PyUnicode_CheckExact(args[9]))
        PyErr_SetString(PyExc_TypeError, "topic: expected a str");
    else if ((messages = PySequence_Tuple(args[5])) != NULL) {
        records = PyMem_Calloc((size_t)PyTuple_GET_SIZE(messages) + 1, sizeof *records);
        if (records == NULL)
            PyErr_NoMemory();
        else {
            int64_t queue_id = (int32_t)get32(append.template + 12);
            is_plain = read_batch(messages, &append, args[9], queue_id, records, &total);
        }
    }
    if (is_plain > 0 && fits(&append, total)) {
        uint8_t *to = (uint8_t *)append.view.buf + append.inside;
        int64_t position = append.position;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(messages); i++) {
            write_record(to + (position - append.position), append.template, append.template_size,
                         records + i, append.queue_offset + i, position, append.timestamp);
            position += records[i].size;
        }
        PyObject *rows = make_rows(args[10], records, PyTuple_GET_SIZE(messages), to);
        if (rows != NULL)
            result = Py_BuildValue("(LN)", (long long)position, rows);
    } else if (is_plain >= 0)
        result = Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; records != NULL && i < PyTuple_GET_SIZE(messages); i++)
        release_record(records + i);
    PyMem_Free(records);
    Py_XDECREF(messages);
    PyBuffer_Release(&append.view);
    return result;
}

/* Properties. */

static PyObject *encode_properties(PyObject *self, PyObject *properties) {
    char encoded[MAX_PROPERTIES];
    Py_ssize_t size = 0, place = 0;
    PyObject *name, *value;
    if (!PyDict_CheckExact(properties))
        Py_RETURN_NONE;
    while (PyDict_Next(properties, &place, &name, &value)) {
        if (!PyUnicode_CheckExact(name) || !PyUnicode_CheckExact(value) ||
            !PyUnicode_IS_COMPACT_ASCII(name) || !PyUnicode_IS_COMPACT_ASCII(value))
            Py_RETURN_NONE;
        Py_ssize_t name_size = PyUnicode_GET_LENGTH(name), value_size = PyUnicode_GET_LENGTH(value);
        const char *name_text = PyUnicode_DATA(name), *value_text = PyUnicode_DATA(value);
        if (name_size == 0 || memchr(name_text, 1, (size_t)name_size) != NULL ||
            memchr(name_text, 2, (size_t)name_size) != NULL ||
            memchr(value_text, 2, (size_t)value_size) != NULL)
            Py_RETURN_NONE;
        if (value_size == 0)
            continue;
        if (name_size > MAX_PROPERTIES || value_size > MAX_PROPERTIES ||
            size + name_size + value_size + 2 > MAX_PROPERTIES)
            Py_RETURN_NONE;
        memcpy(encoded + size, name_text, (size_t)name_size);
        size += name_size;
        encoded[size++] = 1;
        memcpy(encoded + size, value_text, (size_t)value_size);
        size += value_size;
        encoded[size++] = 2;
    }
    return PyBytes_FromStringAndSize(encoded, size);
}

/* Index entries. */

typedef struct {
    const uint8_t *data;
    Py_ssize_t size; /* 0: not there */
} Value;

/* hash * 31^size + String.hashCode of a text; *ascii tells whether it is one. */
static uint32_t hash_text(uint32_t hash, Value text, uint8_t *bits) {
    for (Py_ssize_t i = 0; i < text.size; i++) {
        hash = 31 * hash + text.data[i];
        *bits |= text.data[i];
    }
    return hash;
}

/* The last value of each of the three names that is not empty. */
static void find_values(const uint8_t *data, Py_ssize_t size, Value *uniq, Value *keys, Value *tags) {
    const uint8_t *end = data + size;
    uniq->size = keys->size = tags->size = 0;
    while (data < end) {
        const uint8_t *stop = memchr(data, 2, (size_t)(end - data));
        Py_ssize_t length = (stop == NULL ? end : stop) - data, name = 5;
        Value *found = NULL;
        if (length > 5 && memcmp(data, "KEYS\x01", 5) == 0)
            found = keys;
        else if (length > 5 && memcmp(data, "TAGS\x01", 5) == 0)
            found = tags;
        else if (length > 9 && memcmp(data, "UNIQ_KEY\x01", 9) == 0)
            found = uniq, name = 9;
        if (found != NULL)
            found->data = data + name, found->size = length - name;
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
            return -1;
        entries->room = room;
    }
    if (hash > 0x7FFFFFFF) /* the absolute value, 0 of the smallest number */
        hash = (0u - hash) & 0x7FFFFFFF;
    entries->rows[entries->count] = row;
    entries->hashes[entries->count++] = (int32_t)hash;
    return 0;
}

/* 1; 0 for text that is not ASCII; -1 without memory. before: of `topic#` and `topic#T#`. */
static int add_entries(
    Entries *entries, Py_ssize_t row, PyObject *properties, const uint32_t *before, int64_t *code
) {
    Value uniq, keys, tags, word;
    uint8_t bits = 0;
    find_values((const uint8_t *)PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties), &uniq,
                &keys, &tags);
    *code = (int32_t)hash_text(0, tags, &bits);
    if (uniq.size && add_entry(entries, row, hash_text(before[0], uniq, &bits)) < 0)
        return -1;
    while (keys.size) {
        const uint8_t *space = memchr(keys.data, ' ', (size_t)keys.size);
        word = keys;
        if (space != NULL)
            word.size = space - keys.data;
        keys.data += word.size, keys.size -= word.size;
        if (keys.size)
            keys.data++, keys.size--;
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
        if (number < 0 || number >= topics || !PyBytes_CheckExact(data)) {
            is_plain = 0;
            break;
        }
        memcpy(before, (char *)prefixes.buf + 8 * number, 8);
        is_plain = add_entries(&entries, i, data, before, &code);
        memcpy(PyBytes_AS_STRING(codes) + 8 * i, &code, 8);
    }
    if (is_plain > 0)
        result = Py_BuildValue("(Oy#y#)", codes, entries.count ? (char *)entries.rows : "",
                               entries.count * 8, entries.count ? (char *)entries.hashes : "",
                               entries.count * 4);
    else if (is_plain == 0)
        result = Py_NewRef(Py_None);
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
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
        result = Py_BuildValue("(y#n)", found.count ? (char *)found.rows : "", found.count * 8,
                               position);
    else
        PyErr_SetString(PyExc_ValueError, "no memory, or a range outside of the buffer");
    PyMem_Free(found.rows);
    PyMem_Free(found.hashes);
    PyBuffer_Release(&buffer);
    return result;
}

/* The index file. */

static int32_t count_seconds(int64_t timestamp, int64_t begin) {
    if (begin <= 0 || timestamp <= begin)
        return 0;
    uint64_t seconds = ((uint64_t)timestamp - (uint64_t)begin) / 1000;
    return seconds > INT32_MAX ? INT32_MAX : (int32_t)seconds;
}

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
    int64_t begin_time = (int64_t)get64(data), used_slots = get32(data + 32);
    int64_t number = get32(data + 36) < 1 ? 1 : get32(data + 36);
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
        put32(item, (uint32_t)hash);
        put64(item + 4, (uint64_t)offset);
        put32(item + 12, (uint32_t)count_seconds(time, begin_time));
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

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, NULL},
    {"append_record", (PyCFunction)(void (*)(void))append_record, METH_FASTCALL, NULL},
    {"append_records", (PyCFunction)(void (*)(void))append_records, METH_FASTCALL, NULL},
    {"encode_properties", encode_properties, METH_O, NULL},
    {"index_entries", index_entries, METH_VARARGS, NULL},
    {"walk_records", walk_records, METH_VARARGS, NULL},
    {"put_items", put_items, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_core", "The optional compiled core; see _core.pyi.", -1, methods,
};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddIntConstant(made, "VERSION", VERSION) < 0)
        Py_CLEAR(made);
    return made;
}
