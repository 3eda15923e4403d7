/* What the files of the compiled core share. */

#ifndef TIEREDSTORE_CORE_H
#define TIEREDSTORE_CORE_H

#define _GNU_SOURCE /* memmem */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Messages: a Struct whose fields lie at fixed places. */
enum field {
    TOPIC, BODY, QUEUE_ID, PROPERTIES, FLAG, SYS_FLAG, BORN_TIMESTAMP, BORN_HOST, RECONSUME_TIMES,
    PREPARED_OFFSET, FIELDS
};
extern HIDDEN PyTypeObject *message_type; /* NULL: nothing is plain */
extern HIDDEN Py_ssize_t field_offsets[FIELDS];
extern HIDDEN PyObject *crc32, *large_crc32; /* the latter of more than RELEASING bytes */
extern HIDDEN PyObject *zero;

/* The place of an attribute that a type, or one that it is made from, has as a slot; 0 with an
exception. */
HIDDEN Py_ssize_t find_place(PyTypeObject *type, const char *name);

#define MIN_RECORD_SIZE 91
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu

/* Columns of int64 rows (or positions) and int32 hashes that grow. */
typedef struct {
    int64_t *rows;
    int32_t *hashes;
    Py_ssize_t count, room;
} Entries;

/* -1 without memory, with an exception. */
HIDDEN int add_entry(Entries *entries, Py_ssize_t row, uint32_t hash);

HIDDEN PyObject *index_entries(PyObject *self, PyObject *args);
HIDDEN PyObject *put_items(PyObject *self, PyObject *args);
HIDDEN PyObject *key_hashes(PyObject *self, PyObject *args);
HIDDEN PyObject *put_tiered_items(PyObject *self, PyObject *args);
HIDDEN PyObject *configure_puts(PyObject *self, PyObject *args);
HIDDEN PyObject *append_records(PyObject *self, PyObject *const *args, Py_ssize_t count);
HIDDEN PyObject *put_message(PyObject *self, PyObject *const *args, Py_ssize_t count);

static inline uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t get64(const uint8_t *p) {
    return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static inline void put32(uint8_t *p, uint32_t value) {
    p[0] = (uint8_t)(value >> 24), p[1] = (uint8_t)(value >> 16);
    p[2] = (uint8_t)(value >> 8), p[3] = (uint8_t)value;
}

static inline void put64(uint8_t *p, uint64_t value) {
    put32(p, (uint32_t)(value >> 32));
    put32(p + 4, (uint32_t)value);
}

/* Whether a number is an int of so many bits; then `value` is it. */
static inline int read_int(PyObject *number, int bits, int64_t *value) {
    int overflow = 0;
    if (number == NULL || !PyLong_Check(number))
        return 0;
    *value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow && (bits == 64 || (*value >= INT32_MIN && *value <= INT32_MAX));
}

static inline PyObject *get_field(PyObject *message, enum field field) {
    return *(PyObject **)((char *)message + field_offsets[field]); /* NULL when it is not set */
}

#endif
