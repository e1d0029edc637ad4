/* What plain objects of this very process hold, as MessagePack: the items of dicts and lists and
 * the elements of arrays, for who has seen them before and knows what to expect.
 *
 * A pass in Python over a dozen dicts runs through so much code and memory of the interpreter's
 * that, between two steps of an environment, it takes a hundred microseconds. This takes a few.
 * Everything is asked through Python's stable interface. Whatever is not as it was expected makes
 * the whole fail, and changes nothing: then somebody has to look who understands it.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <string.h>

#include "ring.h"

static uint8_t *put_be(uint8_t *out, uint8_t tag, uint64_t value, int count)
{
    *out++ = tag;
    while (count)
        *out++ = (uint8_t)(value >> 8 * --count);
    return out;
}

/* The shortest form of an integer, as every encoder of MessagePack writes it. */
static uint8_t *put_unsigned(uint8_t *out, uint64_t value)
{
    if (value < 0x80) {
        *out++ = (uint8_t)value;
        return out;
    }
    if (value <= 0xff)
        return put_be(out, 0xcc, value, 1);
    if (value <= 0xffff)
        return put_be(out, 0xcd, value, 2);
    return value <= 0xffffffffu ? put_be(out, 0xce, value, 4) : put_be(out, 0xcf, value, 8);
}

static uint8_t *put_int(uint8_t *out, int64_t value)
{
    if (value >= 0)
        return put_unsigned(out, (uint64_t)value);
    if (value >= -32) {
        *out++ = (uint8_t)value;
        return out;
    }
    if (value >= INT8_MIN)
        return put_be(out, 0xd0, (uint64_t)value, 1);
    if (value >= INT16_MIN)
        return put_be(out, 0xd1, (uint64_t)value, 2);
    return value >= INT32_MIN ? put_be(out, 0xd2, (uint64_t)value, 4)
                              : put_be(out, 0xd3, (uint64_t)value, 8);
}

/* None, a bool, a float or an integer of 64 bits, exactly of that type; NULL for anything else. */
static uint8_t *put_plain(uint8_t *out, PyObject *value)
{
    if (Py_TYPE(value) == &PyFloat_Type) {
        double number = PyFloat_AsDouble(value);
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        return put_be(out, 0xcb, bits, 8);
    }
    if (Py_TYPE(value) == &PyLong_Type) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow ? NULL : put_int(out, number);
    }
    if (value != Py_None && value != Py_True && value != Py_False)
        return NULL;
    *out++ = value == Py_None ? 0xc0 : value == Py_True ? 0xc3 : 0xc2;
    return out;
}

/* The elements of an array, or the bits of a scalar, of exactly this form. */
static uint8_t *put_elements(uint8_t *out, PyObject *value, const dsec_form *form)
{
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_FULL_RO) != 0) {
        PyErr_Clear();
        return NULL;
    }
    int fits = (uint64_t)view.len == form->nbytes && (uint32_t)view.ndim == form->axes &&
               (uint32_t)view.readonly == form->readonly && view.format &&
               strcmp(view.format, form->format) == 0 && PyBuffer_IsContiguous(&view, 'C');
    for (uint32_t axis = 0; fits && axis < form->axes; axis++)
        fits = (uint64_t)view.shape[axis] == form->shape[axis];
    if (fits)
        memcpy(out, view.buf, form->nbytes);
    PyBuffer_Release(&view);
    return fits ? out + form->nbytes : NULL;
}

/* An integer of 128 bits, little endian: as a number while that is one of 63, else in words of
 * Python's, 0x and digits. */
static uint8_t *put_wide(uint8_t *out, const uint64_t *words)
{
    if (words[1] == 0 && words[0] <= INT64_MAX)
        return put_unsigned(out, words[0]);
    char digits[34];
    size_t n = sizeof digits;
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 16; i++)
            digits[--n] = "0123456789abcdef"[words[half] >> 4 * i & 15];
    while (digits[n] == '0')
        n++;
    digits[--n] = 'x';
    digits[--n] = '0';
    size_t length = sizeof digits - n;
    if (length >= 32)
        *out++ = 0xd9;
    *out++ = (uint8_t)(length < 32 ? 0xa0 | length : length);
    memcpy(out, digits + n, length);
    return out + length;
}

static uint8_t *put_text(uint8_t *out, const dsec_text *text)
{
    memcpy(out, text->data, text->nbytes);
    return out + text->nbytes;
}

static uint8_t *put_slot(dsec_items *t, uint8_t *out, const dsec_item *slot, PyObject *value)
{
    out = put_text(out, &slot->before);
    switch (slot->kind) {
    case DSEC_SLOT_SAME:
        return value == slot->same ? out : NULL;
    case DSEC_SLOT_PLAIN:
        return put_plain(out, value);
    case DSEC_SLOT_SCALAR:
        return (void *)Py_TYPE(value) == slot->same ? put_elements(out, value, slot->form) : NULL;
    default:
        t->loose[slot->number].object = value;
        return (void *)Py_TYPE(value) == t->array_type ? out : NULL;
    }
}

static uint8_t *put_memory(uint8_t *out, const dsec_item *slot)
{
    uint64_t words[2];
    uint32_t word;
    switch (slot->kind) {
    case DSEC_SLOT_WIDE:
        memcpy(words, slot->key, sizeof words);
        return put_wide(out, words);
    case DSEC_SLOT_WORD:
        memcpy(&word, slot->key, sizeof word);
        return put_unsigned(out, word);
    default:
        return memcmp(slot->key, slot->same, slot->number) == 0 ? out : NULL;
    }
}

static uint8_t *put_node(dsec_items *t, uint8_t *out, const dsec_node *node)
{
    PyObject *owner = node->owner, *key, *value;
    const dsec_item *slot = node->slots;
    Py_ssize_t at = 0;
    switch (node->kind) {
    case DSEC_NODE_MEMORY:
        for (uint32_t i = 0; out && i < node->count; i++, slot++)
            out = put_memory(put_text(out, &slot->before), slot);
        return out ? put_text(out, &node->after) : NULL;
    case DSEC_NODE_DICT:
        for (uint32_t i = 0; i < node->count; i++, slot++) {
            if (!PyDict_Next(owner, &at, &key, &value) || (void *)key != slot->key)
                return NULL;
            out = put_slot(t, out, slot, value);
            if (!out)
                return NULL;
        }
        return PyDict_Next(owner, &at, &key, &value) ? NULL : put_text(out, &node->after);
    case DSEC_NODE_LIST:
        if (PyList_Size(owner) != (Py_ssize_t)node->count)
            return NULL;
        for (uint32_t i = 0; out && i < node->count; i++, slot++)
            out = put_slot(t, out, slot, PyList_GetItem(owner, (Py_ssize_t)i));
        return out ? put_text(out, &node->after) : NULL;
    default:
        return put_elements(put_text(out, &node->after), owner, &node->form);
    }
}

/* Whether this array is its own and nobody else's: not a view, and not one that is met twice. */
static int is_alone(const dsec_items *t, uint32_t number)
{
    PyObject *array = t->loose[number].object;
    for (uint32_t i = 0; i < number; i++)
        if (t->loose[i].object == (void *)array)
            return 0;
    for (uint32_t i = 0; i < t->arrays_count; i++)
        if (t->arrays[i] == (void *)array)
            return 0;
    PyObject *base = PyObject_GetAttr(array, t->base_key);
    if (!base) {
        PyErr_Clear();
        return 0;
    }
    int owns = base == Py_None;
    Py_DECREF(base);
    return owns;
}

static int64_t join_up(dsec_items *t)
{
    uint8_t *out = put_text(t->out, &t->before);
    for (uint32_t i = 0; i < t->count; i++)
        out = put_text(out, &t->nodes[i].text);
    out = put_text(out, &t->between);
    for (uint32_t i = 0; out && i < t->loose_count; i++) {
        const dsec_loose *loose = &t->loose[i];
        if (!is_alone(t, i))
            return DSEC_ITEMS_OTHER;
        out = put_elements(put_text(out, &loose->before), loose->object, &loose->form);
    }
    return out ? out - t->out : DSEC_ITEMS_OTHER;
}

static int64_t take(dsec_items *t)
{
    uint32_t found = dsec_watch(t->regions, t->regions_count, t->copies, t->changed), next = 0;
    t->told_count = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        dsec_node *node = &t->nodes[i];
        int changed = next < found && t->changed[next] == i;
        next += (uint32_t)changed;
        if (node->watched && !changed && !t->fresh)
            continue;
        if (node->kind == DSEC_NODE_TOLD) {
            t->told[t->told_count++] = i;
            continue;
        }
        uint8_t *end = put_node(t, node->room, node);
        if (!end)
            return DSEC_ITEMS_OTHER;
        node->text.data = node->room;
        node->text.nbytes = (uint64_t)(end - node->room);
    }
    t->fresh = 0;
    return t->told_count ? DSEC_ITEMS_TELL : join_up(t);
}

/* Write what all nodes hold to `out`; return how many bytes that are. DSEC_ITEMS_TELL: first set
 * the text of the nodes in `told`, then call dsec_items_join. DSEC_ITEMS_OTHER: something is not
 * what it was; what has changed since is forgotten then. */
int64_t dsec_items_take(dsec_items *t)
{
    PyGILState_STATE held = PyGILState_Ensure();
    int64_t result = take(t);
    PyGILState_Release(held);
    return result;
}

int64_t dsec_items_join(dsec_items *t)
{
    PyGILState_STATE held = PyGILState_Ensure();
    int64_t result = join_up(t);
    PyGILState_Release(held);
    return result;
}
