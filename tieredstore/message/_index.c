/* Both indexes: entries of messages, and items of their files. */

#include "_core.h"

#define TIERED_BEGIN 0xBCC50289u
#define TIERED_END 0xBCC50285u
#define BORN_HOST_V6 0x10
#define STORE_HOST_V6 0x20
#define MAX_KEYS 64 /* of a message; one with more is not plain */

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

int add_entry(Entries *entries, Py_ssize_t row, uint32_t hash) {
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

PyObject *index_entries(PyObject *self, PyObject *args) {
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

/* Key hashes of the tier. */

/* Where the properties of the record at a position are; 0 when it is no good record. */
static int find_properties(const Py_buffer *buffer, int64_t position, Value *properties) {
    if (position < 0 || position > buffer->len - MIN_RECORD_SIZE)
        return 0;
    const uint8_t *record = (const uint8_t *)buffer->buf + position;
    uint32_t magic = get32(record + 4), flags = get32(record + 36);
    int64_t size = (int32_t)get32(record), head = magic == MAGIC_V2 ? 2 : 1;
    int64_t at = 88 + (flags & BORN_HOST_V6 ? 12 : 0) + (flags & STORE_HOST_V6 ? 12 : 0);
    if ((magic != MAGIC_V1 && magic != MAGIC_V2) || size < MIN_RECORD_SIZE ||
        size > buffer->len - position || at + head + 2 > size)
        return 0;
    int64_t body = (int32_t)get32(record + at - 4);
    at += body; /* the topic's length */
    if (body < 0 || at + head + 2 > size)
        return 0;
    int64_t topic = head == 2 ? (int16_t)(record[at] << 8 | record[at + 1]) : (int8_t)record[at];
    at += head + topic; /* the properties' length */
    if (topic < 0 || at + 2 > size)
        return 0;
    int64_t length = (int16_t)(record[at] << 8 | record[at + 1]);
    *properties = (Value){record + at + 2, length};
    return at + 2 + length == size && length >= 0;
}

static int is_known(const Value *known, int count, Value word) {
    for (int i = 0; i < count; i++)
        if (known[i].size == word.size && memcmp(known[i].data, word.data, (size_t)word.size) == 0)
            return 1;
    return 0;
}

/* As add_entries; 0 for what may be white space alone, too. */
static int add_keys(Entries *entries, Py_ssize_t row, Value properties, uint32_t before) {
    Value values[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}}, known[MAX_KEYS];
    uint8_t bits = 0;
    int count = 0;
    find_values(properties.data, properties.size, values);
    Value uniq = values[0], keys = values[1];
    if ((uniq.size && uniq.data[0] <= ' ') || (keys.size && keys.data[0] <= ' '))
        return 0;
    if (uniq.size) {
        if (add_entry(entries, row, hash_text(before, uniq, &bits)) < 0)
            return -1;
        known[count++] = uniq;
    }
    while (keys.size > 0) {
        const uint8_t *space = memchr(keys.data, ' ', (size_t)keys.size);
        Value word = {keys.data, space == NULL ? keys.size : space - keys.data};
        keys.data += word.size + 1, keys.size -= word.size + 1;
        if (word.size == 0 || is_known(known, count, word))
            continue;
        if (count == MAX_KEYS)
            return 0;
        if (add_entry(entries, row, hash_text(before, word, &bits)) < 0)
            return -1;
        known[count++] = word;
    }
    return bits < 0x80;
}

PyObject *key_hashes(PyObject *self, PyObject *args) {
    Py_buffer buffer, positions;
    unsigned int before; /* of `topic#` */
    if (!PyArg_ParseTuple(args, "y*y*I:key_hashes", &buffer, &positions, &before))
        return NULL;
    Entries entries = {NULL, NULL, 0, 0};
    PyObject *result = NULL;
    int is_plain = 1;
    for (Py_ssize_t i = 0; is_plain > 0 && i < positions.len / 8; i++) {
        int64_t position;
        Value properties;
        memcpy(&position, (char *)positions.buf + 8 * i, 8);
        is_plain = find_properties(&buffer, position, &properties)
            ? add_keys(&entries, i, properties, before) : 0;
    }
    if (is_plain > 0)
        result = Py_BuildValue(
            "(NN)", PyBytes_FromStringAndSize((char *)entries.rows, entries.count * 8),
            PyBytes_FromStringAndSize((char *)entries.hashes, entries.count * 4)
        );
    else if (is_plain == 0)
        result = Py_NewRef(Py_None);
    PyMem_Free(entries.rows);
    PyMem_Free(entries.hashes);
    PyBuffer_Release(&buffer);
    PyBuffer_Release(&positions);
    return result;
}

/* The index file. */
PyObject *put_items(PyObject *self, PyObject *args) {
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

/* The index file of the tier. */

/* Whole seconds from one time to another (ms), toward zero, held within an int32. */
static int32_t count_seconds(int64_t begin, int64_t time) {
    int64_t millis;
    if (__builtin_sub_overflow(time, begin, &millis))
        return time < 0 ? INT32_MIN : INT32_MAX;
    int64_t seconds = millis / 1000;
    return seconds < INT32_MIN ? INT32_MIN : seconds > INT32_MAX ? INT32_MAX : (int32_t)seconds;
}

PyObject *put_tiered_items(PyObject *self, PyObject *args) {
    Py_buffer file, hashes, offsets, sizes, times;
    long long slots;
    int topic_id, queue_id;
    if (!PyArg_ParseTuple(args, "w*Liiy*y*y*y*:put_tiered_items", &file, &slots, &topic_id,
                          &queue_id, &hashes, &offsets, &sizes, &times))
        return NULL;
    uint8_t *data = file.buf;
    Py_ssize_t count = hashes.len / 4;
    int64_t max_items = slots > 0 && slots <= INT32_MAX ? (file.len - 28 - slots * 8) / 32 : -1;
    int is_good = file.len >= 28 && max_items >= 0 && max_items <= INT32_MAX &&
        offsets.len / 8 == count && sizes.len / 4 == count && times.len / 8 == count;
    if (is_good) {
        uint32_t magic = get32(data);
        is_good = (magic == TIERED_BEGIN || magic == TIERED_END) && (int32_t)get32(data + 20) >= 0 &&
            (int32_t)get32(data + 24) >= 0 && count < max_items - (int32_t)get32(data + 24) &&
            count <= INT32_MAX - (int32_t)get32(data + 20);
    }
    if (is_good && count > 0) {
        int64_t begin = (int64_t)get64(data + 4), latest = (int64_t)get64(data + 12);
        uint32_t used_slots = get32(data + 20), number = get32(data + 24);
        uint8_t *items = data + 28 + slots * 8;
        for (Py_ssize_t i = 0; i < count; i++) {
            int32_t hash, size;
            int64_t offset, time;
            memcpy(&hash, (char *)hashes.buf + 4 * i, 4);
            memcpy(&offset, (char *)offsets.buf + 8 * i, 8);
            memcpy(&size, (char *)sizes.buf + 4 * i, 4);
            memcpy(&time, (char *)times.buf + 8 * i, 8);
            int64_t place = hash % slots;
            uint8_t *slot = data + 28 + 8 * (place < 0 ? place + slots : place);
            uint8_t *item = items + 32 * (int64_t)++number;
            uint32_t previous = get32(slot); /* a negative one is too large */
            if (previous >= number)
                previous = 0;
            put32(item, (uint32_t)hash);
            put32(item + 4, (uint32_t)topic_id);
            put32(item + 8, (uint32_t)queue_id);
            put64(item + 12, (uint64_t)offset);
            put32(item + 20, (uint32_t)size);
            put32(item + 24, (uint32_t)count_seconds(begin, time));
            put32(item + 28, previous);
            put32(slot, number);
            used_slots += previous == 0;
            latest = time > latest ? time : latest;
        }
        put64(data + 12, (uint64_t)latest);
        put32(data + 20, used_slots);
        put32(data + 24, number);
        if (number + 1 == (uint64_t)max_items)
            put32(data, TIERED_END);
    }
    PyBuffer_Release(&file);
    PyBuffer_Release(&hashes);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&times);
    return is_good ? PyLong_FromSsize_t(count) : Py_NewRef(Py_None);
}
