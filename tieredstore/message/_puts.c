/* Puts of plain messages. The GIL is held throughout but where a large body's CRC is computed.

What a put changes changes in one stretch of code that takes no memory and calls nothing: a message
is stored whole or not at all, whatever interrupts its put (docs/local-store.md, Interrupts). The
lock, the clock and the state stay objects of Python, which other code reads and changes. */

#include "_core.h"
#include <time.h>

#define HEAD_SIZE 88 /* in front of the body, with two IPv4 hosts */
#define MAX_ROW_PROPERTIES 4096
#define RELEASING 5120          /* message/crc.py */
#define HELD_AT_MOST (64 << 10) /* there too */
#define NOT_PLAIN (0x1 << 4 | 0x1 << 5 | 0x3 << 2 | 0x1 << 7)

static int contains(PyObject *data, const char *text) {
    return memmem(PyBytes_AS_STRING(data), (size_t)Py_SIZE(data), text, strlen(text)) != NULL;
}

/* Records. */
typedef struct {
    Py_buffer view;
    const uint8_t *template;
    Py_ssize_t template_size;
    int64_t inside, limit, max_body, queue_offset, position, timestamp;
} Append;

typedef struct {
    PyObject *body, *properties, *born_host; /* owned: other threads may change the message */
    int64_t numbers[FIELDS];
    uint32_t crc;
    Py_ssize_t size;
} Record;

/* The CRC of a body, as large_crc32 computes it: in pieces for which the library keeps the GIL. */
static PyObject *compute_crc(PyObject *body, Py_ssize_t size) {
    if (size <= RELEASING || size > HELD_AT_MOST)
        return PyObject_CallOneArg(size <= RELEASING ? crc32 : large_crc32, body);
    PyObject *value = Py_NewRef(zero);
    for (Py_ssize_t start = 0; value != NULL && start < size; start += RELEASING) {
        Py_ssize_t length = size - start < RELEASING ? size - start : RELEASING;
        PyObject *piece =
            PyMemoryView_FromMemory(PyBytes_AS_STRING(body) + start, length, PyBUF_READ);
        PyObject *given[] = {piece, value};
        Py_SETREF(value, piece == NULL ? NULL : PyObject_Vectorcall(crc32, given, 2, NULL));
        Py_XDECREF(piece);
    }
    return value;
}

/* What a message becomes: 1 when it is plain, else 0; -1 with an exception. `record` is to be
released by end_append whatever the answer is. */
static int read_message(PyObject *message, const Append *append, Record *record) {
    memset(record, 0, sizeof *record);
    if (Py_TYPE(message) != message_type)
        return 0;
    PyObject *body = get_field(message, BODY), *properties = get_field(message, PROPERTIES);
    PyObject *born_host = get_field(message, BORN_HOST);
    if (body == NULL || !PyBytes_CheckExact(body) || PyBytes_GET_SIZE(body) > append->max_body ||
        properties == NULL || !PyBytes_CheckExact(properties) ||
        PyBytes_GET_SIZE(properties) > MAX_ROW_PROPERTIES || born_host == NULL ||
        !PyBytes_CheckExact(born_host) || PyBytes_GET_SIZE(born_host) != 8)
        return 0;
    record->body = Py_NewRef(body);
    record->properties = Py_NewRef(properties), record->born_host = Py_NewRef(born_host);
    for (int field = FLAG; field < FIELDS; field++) {
        int bits = field == BORN_TIMESTAMP || field == PREPARED_OFFSET ? 64 : 32;
        int64_t *number = record->numbers + field;
        if (field != BORN_HOST && !read_int(get_field(message, field), bits, number))
            return 0;
    }
    if (record->numbers[SYS_FLAG] & NOT_PLAIN || contains(properties, "INNER_"))
        return 0;
    Py_ssize_t size = PyBytes_GET_SIZE(body);
    record->size = append->template_size + size + 2 + PyBytes_GET_SIZE(properties);
    PyObject *crc = compute_crc(body, size);
    if (crc == NULL)
        return -1;
    record->crc = (uint32_t)PyLong_AsUnsignedLongMask(crc) & 0x7FFFFFFF;
    Py_DECREF(crc);
    return PyErr_Occurred() ? -1 : 1;
}

static void write_record(uint8_t *to, const Append *append, const Record *record,
                         int64_t queue_offset, int64_t position) {
    size_t body_size = (size_t)PyBytes_GET_SIZE(record->body);
    size_t topic_size = (size_t)append->template_size - HEAD_SIZE;
    size_t properties_size = (size_t)PyBytes_GET_SIZE(record->properties);
    memcpy(to, append->template, HEAD_SIZE);
    put32(to, (uint32_t)record->size);
    put32(to + 8, record->crc);
    put32(to + 16, (uint32_t)record->numbers[FLAG]);
    put64(to + 20, (uint64_t)queue_offset);
    put64(to + 28, (uint64_t)position);
    put32(to + 36, (uint32_t)record->numbers[SYS_FLAG]);
    put64(to + 40, (uint64_t)record->numbers[BORN_TIMESTAMP]);
    memcpy(to + 48, PyBytes_AS_STRING(record->born_host), 8);
    put64(to + 56, (uint64_t)append->timestamp);
    put32(to + 72, (uint32_t)record->numbers[RECONSUME_TIMES]);
    put64(to + 76, (uint64_t)record->numbers[PREPARED_OFFSET]);
    put32(to + 84, (uint32_t)body_size);
    to += HEAD_SIZE;
    memcpy(to, PyBytes_AS_STRING(record->body), body_size);
    to += body_size;
    memcpy(to, append->template + HEAD_SIZE, topic_size);
    to += topic_size;
    to[0] = (uint8_t)(properties_size >> 8), to[1] = (uint8_t)properties_size;
    memcpy(to + 2, PyBytes_AS_STRING(record->properties), properties_size);
}

/* Check the numbers of an append and open its view: 1, and `view` is to be released; 0 when Python
has to do it; -1 with an exception. */
static int open_append(Append *append, PyObject *view, PyObject *template) {
    if (!PyBytes_CheckExact(template) || PyBytes_GET_SIZE(template) < HEAD_SIZE + 1 ||
        PyBytes_GET_SIZE(template) > HEAD_SIZE + 2 + 32767 || append->queue_offset < 0 ||
        append->queue_offset > INT64_MAX / 2 || append->position < 0 ||
        append->position > INT64_MAX / 2 || message_type == NULL)
        return 0;
    append->template = (const uint8_t *)PyBytes_AS_STRING(template);
    append->template_size = PyBytes_GET_SIZE(template);
    if (PyObject_GetBuffer(view, &append->view, PyBUF_WRITABLE) < 0) {
        int is_read_only = PyErr_ExceptionMatches(PyExc_BufferError); /* as an empty log's */
        return is_read_only ? (PyErr_Clear(), 0) : -1;
    }
    if (append->limit > append->view.len)
        append->limit = append->view.len;
    return 1;
}

/* Whether a message may be part of a batch of a queue. */
static int belongs(PyObject *message, const Record *record, PyObject *topic, int64_t queue_id) {
    PyObject *found = get_field(message, TOPIC);
    int64_t number;
    return found != NULL && PyUnicode_CheckExact(found) && PyUnicode_Compare(found, topic) == 0 &&
           read_int(get_field(message, QUEUE_ID), 32, &number) && number == queue_id &&
           !contains(record->properties, "DELAY\x01");
}

/* Write what was read, if it is plain and fits (is_plain < 0: there is an exception), and release
it; the byte of the log behind it, and the rows: number, head and properties of each record. */
static PyObject *end_append(Append *append, Record *records, Py_ssize_t count, PyObject *number,
                            int is_plain) {
    int64_t position = append->position, size = 0;
    PyObject *result = NULL, *end = NULL, *rows = NULL;
    uint8_t *to = NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        size += records[i].size;
    if (is_plain == 0 || append->inside < 0 || append->inside > append->limit ||
        size > append->limit - append->inside)
        result = is_plain < 0 ? NULL : Py_NewRef(Py_None);
    else if (is_plain > 0 && (rows = PyTuple_New(3 * count)) != NULL)
        to = (uint8_t *)append->view.buf + append->inside;
    for (Py_ssize_t i = 0; rows != NULL && i < count; i++) {
        write_record(to, append, records + i, append->queue_offset + i, position);
        PyObject *head = PyBytes_FromStringAndSize((char *)to, HEAD_SIZE);
        PyTuple_SET_ITEM(rows, 3 * i, Py_NewRef(number));
        PyTuple_SET_ITEM(rows, 3 * i + 1, head);
        PyTuple_SET_ITEM(rows, 3 * i + 2, Py_NewRef(records[i].properties));
        if (head == NULL)
            Py_CLEAR(rows);
        to += records[i].size, position += records[i].size;
    }
    if (rows != NULL && (end = PyLong_FromLongLong(position)) != NULL)
        result = PyTuple_Pack(2, end, rows);
    Py_XDECREF(end);
    Py_XDECREF(rows);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(records[i].body);
        Py_XDECREF(records[i].properties);
        Py_XDECREF(records[i].born_host);
    }
    PyBuffer_Release(&append->view);
    return result;
}

PyObject *append_records(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Append append;
    if (count != 11)
        return PyErr_Format(PyExc_TypeError, "expected 11 arguments, found %zd", count);
    int is_plain =
        read_int(args[1], 64, &append.inside) && read_int(args[2], 64, &append.limit) &&
        read_int(args[4], 32, &append.max_body) && read_int(args[6], 64, &append.queue_offset) &&
        read_int(args[7], 64, &append.position) && read_int(args[8], 64, &append.timestamp);
    if (is_plain)
        is_plain = open_append(&append, args[0], args[3]);
    if (is_plain <= 0)
        return is_plain < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *messages = PySequence_Tuple(args[5]);
    Py_ssize_t size = messages == NULL ? 0 : PyTuple_GET_SIZE(messages), read = 0;
    Record *records = PyMem_Malloc((size_t)(size + 1) * sizeof *records);
    if (records == NULL)
        PyErr_NoMemory();
    is_plain = messages == NULL || records == NULL ? -1 : PyUnicode_CheckExact(args[10]);
    while (is_plain > 0 && read < size) {
        PyObject *message = PyTuple_GET_ITEM(messages, read);
        is_plain = read_message(message, &append, records + read++);
        if (is_plain > 0)
            is_plain = belongs(message, records + read - 1, args[10],
                               (int32_t)get32(append.template + 12));
    }
    PyObject *result = end_append(&append, records, read, args[9], is_plain);
    PyMem_Free(records);
    Py_XDECREF(messages);
    return result;
}


/* What a put reads and changes lies at fixed places of three objects. */
enum place {
    PLAIN, LOCK, NOW, MAX_BODY, LOG, ROWS, LAST_TIMESTAMP, DURABILITY, IS_IDLE, WAKES, HELP_VALUES,
    VIEW, VIEW_FROM, LIMIT, MAX_OFFSET, NEXT_OFFSET, NUMBER, PLACES
};
enum { APPENDER, COMMIT_LOG, QUEUE, OWNERS };
static const struct {
    int owner;
    const char *name;
} places[PLACES] = {
    {APPENDER, "_plain"}, {APPENDER, "_lock"}, {APPENDER, "_now_ms"},
    {APPENDER, "_max_plain_body_bytes"}, {APPENDER, "_log"}, {APPENDER, "_rows"},
    {APPENDER, "last_timestamp_ms"}, {APPENDER, "durability"}, {APPENDER, "_is_idle"},
    {APPENDER, "_wakes"}, {APPENDER, "_help_values"}, {COMMIT_LOG, "view"},
    {COMMIT_LOG, "view_from"}, {COMMIT_LOG, "limit"}, {COMMIT_LOG, "max_offset"},
    {QUEUE, "next_offset"}, {QUEUE, "number"},
};
static Py_ssize_t offsets[PLACES];
static PyTypeObject *owners[OWNERS], *result_type;
static PyObject *put_ok, *durable, *system_clock;
static PyObject *acquire, *release, *help_after, *put_in_python, *no_reason;

PyObject *configure_puts(PyObject *self, PyObject *args) {
    PyObject *types[OWNERS], *result, *ok, *is_durable, *clock;
    Py_ssize_t found[PLACES];
    if (!PyArg_ParseTuple(args, "O!O!O!O!OOO:configure_puts", &PyType_Type, types, &PyType_Type,
                          types + 1, &PyType_Type, types + 2, &PyType_Type, &result, &ok,
                          &is_durable, &clock))
        return NULL;
    for (int i = 0; i < PLACES; i++)
        if ((found[i] = find_place((PyTypeObject *)types[places[i].owner], places[i].name)) == 0)
            return NULL;
    if ((acquire = PyUnicode_InternFromString("acquire")) == NULL ||
        (release = PyUnicode_InternFromString("release")) == NULL ||
        (help_after = PyUnicode_InternFromString("_help_after")) == NULL ||
        (put_in_python = PyUnicode_InternFromString("put_in_python")) == NULL ||
        (no_reason = PyUnicode_InternFromString("")) == NULL)
        return NULL;
    memcpy(offsets, found, sizeof found);
    for (int i = 0; i < OWNERS; i++)
        Py_XSETREF(owners[i], (PyTypeObject *)Py_NewRef(types[i]));
    Py_XSETREF(result_type, (PyTypeObject *)Py_NewRef(result));
    Py_XSETREF(put_ok, Py_NewRef(ok));
    Py_XSETREF(durable, Py_NewRef(is_durable));
    Py_XSETREF(system_clock, Py_NewRef(clock));
    Py_RETURN_NONE;
}

static PyObject **at(PyObject *owner, enum place place) {
    return (PyObject **)((char *)owner + offsets[place]); /* of NULL when it is not set */
}

static int is_owner(PyObject *object, int owner) {
    return object != NULL && PyObject_TypeCheck(object, owners[owner]);
}

/* The time of a put; 0 when Python has to do it or with an exception. */
static int read_clock(PyObject *appender, int64_t *timestamp) {
    PyObject *now = *at(appender, NOW);
    int64_t last;
    if (now != NULL && PyMethod_Check(now) && PyMethod_GET_FUNCTION(now) == system_clock) {
        struct timespec time;
        if (clock_gettime(CLOCK_REALTIME, &time) != 0)
            return 0;
        *timestamp = (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
    } else {
        PyObject *found = now == NULL ? NULL : PyObject_CallNoArgs(now);
        int is_read = found != NULL && read_int(found, 64, timestamp);
        Py_XDECREF(found);
        if (!is_read)
            return 0;
    }
    if (!read_int(*at(appender, LAST_TIMESTAMP), 64, &last))
        return 0;
    *timestamp = last > *timestamp ? last : *timestamp;
    return 1;
}

/* Store a message, the lock taken: its result. NULL when Python has to do it or with an exception;
then nothing has changed, unless `stored_bytes` says that it is stored. plain: what `_plain` has of
its queue. */
static PyObject *append_and_publish(PyObject *appender, PyObject *plain, PyObject *message,
                                    int64_t *stored_bytes) {
    PyObject *log = *at(appender, LOG), *state = PyTuple_GET_ITEM(plain, 0);
    PyObject *values[9] = {put_ok, NULL, NULL, NULL, NULL, NULL, NULL, no_reason, Py_True};
    PyObject *appended = NULL, *result = NULL, *next = NULL;
    Append append;
    Record record;
    int64_t view_from, limit, end;
    if (!read_clock(appender, &append.timestamp) || !is_owner(log, COMMIT_LOG) ||
        !is_owner(state, QUEUE) || !read_int(*at(log, VIEW_FROM), 64, &view_from) ||
        !read_int(*at(log, LIMIT), 64, &limit) ||
        !read_int(*at(log, MAX_OFFSET), 64, &append.position) ||
        !read_int(*at(state, NEXT_OFFSET), 64, &append.queue_offset) ||
        !read_int(*at(appender, MAX_BODY), 32, &append.max_body) || *at(log, VIEW) == NULL ||
        *at(state, NUMBER) == NULL)
        return NULL;
    append.inside = append.position - view_from, append.limit = limit - view_from;
    if (open_append(&append, *at(log, VIEW), PyTuple_GET_ITEM(plain, 6)) <= 0)
        return NULL;
    appended = end_append(&append, &record, 1, *at(state, NUMBER),
                          read_message(message, &append, &record));
    PyObject *rows = *at(appender, ROWS), *durability = *at(appender, DURABILITY);
    if (appended == NULL || appended == Py_None || rows == NULL || !PyList_CheckExact(rows) ||
        durability == NULL)
        goto done;
    PyObject *stop = PyTuple_GET_ITEM(appended, 0), *row = PyTuple_GET_ITEM(appended, 1);
    if (!read_int(stop, 64, &end) || !read_int(*at(log, LIMIT), 64, &limit) || end > limit ||
        (durability != durable && contains(PyTuple_GET_ITEM(row, 2), "WAIT\x01")))
        goto done; /* the file was cut off meanwhile; the message may wait for nothing */
    values[1] = PyLong_FromLongLong(append.position);
    values[2] = PyLong_FromLongLong(append.queue_offset);
    values[3] = PyLong_FromLongLong(end - append.position);
    values[4] = PyLong_FromLong(1);
    values[5] = PyLong_FromLongLong(append.timestamp);
    values[6] = Py_NewRef(durability);
    next = PyLong_FromLongLong(append.queue_offset + 1);
    if (values[1] != NULL && values[2] != NULL && values[3] != NULL && values[4] != NULL &&
        values[5] != NULL && next != NULL)
        result = PyObject_Vectorcall((PyObject *)result_type, values, 9, NULL);
    Py_ssize_t count = PyList_GET_SIZE(rows);
    if (result == NULL || PyList_SetSlice(rows, count, count, row) < 0) {
        Py_CLEAR(result);
        goto done;
    }
    *stored_bytes = end - append.position;
    Py_XSETREF(*at(log, MAX_OFFSET), Py_NewRef(stop));
    Py_XSETREF(*at(state, NEXT_OFFSET), Py_NewRef(next));
    Py_XSETREF(*at(appender, LAST_TIMESTAMP), Py_NewRef(values[5]));
    if (*at(appender, IS_IDLE) == Py_True) {
        PyObject *wakes = Py_XNewRef(*at(appender, WAKES));
        Py_XSETREF(*at(appender, IS_IDLE), Py_NewRef(Py_False));
        if (wakes != NULL && PySequence_Contains(wakes, zero) < 0)
            Py_CLEAR(result);
        Py_XDECREF(wakes);
    }
done:
    for (int i = 1; i <= 6; i++)
        Py_XDECREF(values[i]);
    Py_XDECREF(next);
    Py_XDECREF(appended);
    return result;
}

/* What `_plain` has of a message's queue, if it may be read; else NULL. */
static PyObject *find_plain(PyObject *appender, PyObject *message) {
    if (result_type == NULL || !is_owner(appender, APPENDER) || Py_TYPE(message) != message_type)
        return NULL;
    PyObject *table = *at(appender, PLAIN), *plain = NULL;
    PyObject *topic = get_field(message, TOPIC), *queue_id = get_field(message, QUEUE_ID);
    if (table == NULL || !PyDict_CheckExact(table) || topic == NULL || queue_id == NULL ||
        !PyUnicode_CheckExact(topic) || !PyLong_CheckExact(queue_id))
        return NULL;
    PyObject *key = PyTuple_Pack(2, topic, queue_id);
    if (key != NULL)
        plain = PyDict_GetItemWithError(table, key);
    Py_XDECREF(key);
    return plain != NULL && PyTuple_CheckExact(plain) && PyTuple_GET_SIZE(plain) == 7
               ? Py_NewRef(plain)
               : NULL;
}

/* put(appender, message): a method of appenders. */
PyObject *put_message(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "put: expected 1 argument, found %zd", count - 1);
    PyObject *appender = args[0], *result = NULL, *plain = find_plain(appender, args[1]);
    PyObject *lock = plain == NULL ? NULL : Py_XNewRef(*at(appender, LOCK));
    int64_t stored_bytes = 0, help_values;
    if (lock != NULL) {
        PyObject *acquiring[2] = {lock, Py_False};
        PyObject *is_taken = PyObject_VectorcallMethod(acquire, acquiring, 2, NULL);
        if (is_taken == Py_True) {
            result = append_and_publish(appender, plain, args[1], &stored_bytes);
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            Py_XDECREF(PyObject_CallMethodNoArgs(lock, release));
            if (type != NULL)
                PyErr_Restore(type, value, trace);
        }
        Py_XDECREF(is_taken);
        Py_DECREF(lock);
    }
    Py_XDECREF(plain);
    if (result == NULL) {
        if (stored_bytes > 0 ||
            (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)))
            return NULL;
        PyErr_Clear(); /* the way in Python answers it */
        return PyObject_CallMethodOneArg(appender, put_in_python, args[1]);
    }
    PyObject *rows = *at(appender, ROWS);
    if (rows != NULL && PyList_CheckExact(rows) &&
        read_int(*at(appender, HELP_VALUES), 64, &help_values) &&
        PyList_GET_SIZE(rows) > help_values) {
        PyObject *number = PyLong_FromLongLong(stored_bytes), *helped = NULL;
        if (number != NULL)
            helped = PyObject_CallMethodOneArg(appender, help_after, number);
        Py_XDECREF(number);
        if (helped == NULL)
            Py_CLEAR(result);
        Py_XDECREF(helped);
    }
    return result;
}
