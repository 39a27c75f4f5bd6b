/* The model of one policy: sampling, scoring, the backward pass and AdamW. `fused.py` calls this
   file, `kernels.py` compiles it; `batched.py` is the same mathematics in torch.

   The responses to the prompts of a cell are a tree: a node is a token behind what is before it, so
   that equal beginnings are computed once. A node attends to its path from the root. A node is
   stored behind its path, those of prompts first, and its row is computed from its path alone, in
   one order of operations: its numbers do not depend on the rows beside it.

   Pairs of a rotation are stored as halves [first elements | second elements], by the order of
   rows in the packed query and key matrices: a rotation is then two products of whole vectors.

   The shape of the model comes from policy.py and skills.py, by -D. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef REAL real;

#if defined(__AVX512F__)
enum { BYTES = 64, TILE = 12 };
#elif defined(__AVX__)
enum { BYTES = 32, TILE = 6 };
#else
enum { BYTES = 16, TILE = 6 };
#endif

enum {
    LANES = BYTES / sizeof(real),
    COLUMNS = 2 * LANES, /* of a panel of a packed matrix */
    CHUNK = 8 * 12,      /* rows between two matrices: they stay in the second cache */
    QKV = 3 * HEAD,
    PAIRS = HEAD / 2,
    VOCABULARY = (TOKENS + COLUMNS - 1) / COLUMNS * COLUMNS, /* of a padded row */
    OUTPUTS = (TOKENS + TILE - 1) / TILE * TILE,
    ALIGNED = 64, /* bytes */
};

typedef real vec __attribute__((vector_size(BYTES)));
typedef real loose __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

_Static_assert(PAIRS % LANES == 0 && HEAD % COLUMNS == 0, "halves are whole vectors");
_Static_assert(WIDTH % COLUMNS == 0 && HIDDEN % LANES == 0, "rows are whole vectors");
_Static_assert(CHUNK % TILE == 0, "only the last chunk has an incomplete tile");

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

INLINE vec load(const real *from) { return *(const loose *)from; }
INLINE void store(real *to, vec x) { *(loose *)to = x; }
INLINE vec splat(real x) { return x - (vec){0}; }

INLINE real total(vec x)
{
    /* Halves of a vector are added until 16 bytes are left. */
    typedef real quarter __attribute__((vector_size(16)));
    typedef real half __attribute__((vector_size(BYTES > 32 ? 32 : BYTES)));
    enum { HALVES = BYTES / sizeof(half), QUARTERS = sizeof(half) / 16, LAST = 16 / sizeof(real) };
    const union { vec whole; half parts[HALVES]; } in = {x};
    const union { half whole; quarter parts[QUARTERS]; } of = {
        HALVES == 2 ? in.parts[0] + in.parts[HALVES - 1] : in.parts[0]};
    const quarter sum = QUARTERS == 2 ? of.parts[0] + of.parts[QUARTERS - 1] : of.parts[0];
    return LAST == 4 ? (sum[0] + sum[2 % LAST]) + (sum[1] + sum[3 % LAST]) : sum[0] + sum[1];
}

/* e^x, and 0 where x < -87. In single precision the relative error is about 1e-7. */
INLINE vec exponential(vec x)
{
    if (sizeof(real) == 8) {
        for (int i = 0; i < LANES; i++) x[i] = x[i] < -87 ? 0 : (real)exp((double)x[i]);
        return x;
    }
    typedef int32_t whole __attribute__((vector_size(BYTES)));
    typedef float single __attribute__((vector_size(BYTES)));
    const single given = (single)x;
    /* A comparison is all ones or 0; NaN is below nothing and stays NaN. */
    const whole below = given < -87.0f, above = given > 88.0f;
    const single high = (single)(((whole)(88.0f - (single){0}) & above) | ((whole)given & ~above));
    const single bounded = (single)(((whole)(-87.0f - (single){0}) & below) | ((whole)high & ~below));
    /* x = n log 2 + rest; adding 1.5 * 2^23 rounds to whole numbers. */
    const single shifted = bounded * 1.44269504f + 12582912.0f;
    const single n = shifted - 12582912.0f;
    const single rest = bounded - n * 0.693359375f - n * -2.12194440e-4f;
    single p = 1.9875691500e-4f * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    p = p * rest * rest + rest + 1.0f;
    const whole scaled = (whole)p + ((whole)shifted << 23);
    return (vec)(scaled & ~below);
}

/* c (+)= a b, for `rows` rows and `vectors` vectors of columns: c[i][j] = sum of a[i][k] b[k][j]. */
INLINE void tile(const int rows, const int vectors, const real *a, const long a_row,
                 const long a_depth, const long depth, const real *b, const long b_depth, real *c,
                 const long c_row, const int add)
{
    vec sum[TILE][2];
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < vectors; j++)
            sum[i][j] = add ? load(c + i * c_row + j * LANES) : (vec){0};
    for (long k = 0; k < depth; k++) {
        vec right[2];
        UNROLLED for (int j = 0; j < vectors; j++) right[j] = load(b + k * b_depth + j * LANES);
        UNROLLED for (int i = 0; i < rows; i++) {
            const vec left = splat(a[i * a_row + k * a_depth]);
            UNROLLED for (int j = 0; j < vectors; j++) sum[i][j] += left * right[j];
        }
    }
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < vectors; j++) store(c + i * c_row + j * LANES, sum[i][j]);
}

INLINE void tiles(const int vectors, const real *a, const long a_row, const long a_depth,
                  const long rows, const long depth, const real *b, const long b_depth, real *c,
                  const long c_row, const int add)
{
    for (long i = 0; i < rows; i += TILE) {
        const real *from = a + i * a_row;
        real *to = c + i * c_row;
        if (rows - i > TILE * 2 / 3)
            tile(TILE, vectors, from, a_row, a_depth, depth, b, b_depth, to, c_row, add);
        else if (rows - i > TILE / 3)
            tile(TILE * 2 / 3, vectors, from, a_row, a_depth, depth, b, b_depth, to, c_row, add);
        else
            tile(TILE / 3, vectors, from, a_row, a_depth, depth, b, b_depth, to, c_row, add);
    }
}

/* c [rows, width] (+)= a [rows, depth] times a packed matrix. `tall` is the depth of its panels.
   Up to TILE - 1 rows behind the last are written too. */
INLINE void times(const real *a, const long a_row, const long rows, const long depth,
                  const real *panels, const long tall, const long width, real *c, const long c_row,
                  const int add)
{
    long j = 0;
    for (; j + COLUMNS <= width; j += COLUMNS)
        tiles(2, a, a_row, 1, rows, depth, panels + j * tall, COLUMNS, c + j, c_row, add);
    if (j < width) tiles(1, a, a_row, 1, rows, depth, panels + j * tall, LANES, c + j, c_row, add);
}

/* c [out, in] (+)= the sum over rows of y[row][out] x[row][in]. */
INLINE void outer(const real *y, const long y_row, const long out, const real *x, const long x_row,
                  const long in, const long rows, real *c, const int add)
{
    long j = 0;
    for (; j + COLUMNS <= in; j += COLUMNS)
        tiles(2, y, 1, y_row, out, rows, x + j, x_row, c + j, in, add);
    if (j < in) tiles(1, y, 1, y_row, out, rows, x + j, x_row, c + j, in, add);
}

/* Places in a flat vector, in the order of policy.py. */
enum {
    ATTENTION_NORM = 0,
    QKV_MATRIX = ATTENTION_NORM + WIDTH,
    OUTPUT_MATRIX = QKV_MATRIX + QKV * WIDTH,
    MLP_NORM = OUTPUT_MATRIX + WIDTH * HEAD,
    GATE_UP_MATRIX = MLP_NORM + WIDTH,
    DOWN_MATRIX = GATE_UP_MATRIX + 2 * HIDDEN * WIDTH,
    LAYER_SIZE = DOWN_MATRIX + WIDTH * HIDDEN,
    FIRST_LAYER = TOKENS * WIDTH,
    NORM = FIRST_LAYER + LAYERS * LAYER_SIZE,
    HEAD_MATRIX = NORM + WIDTH,
    SIZE = HEAD_MATRIX + TOKENS * WIDTH,
};
_Static_assert(SIZE == PARAMETERS, "the flat vector of policy.py");

/* A policy's matrices as panels, with the norm before each in it: transposed for the forward pass
   (`up`), and as they are for the backward pass (`down`). */
typedef struct {
    real qkv_up[QKV * WIDTH], output_up[WIDTH * HEAD], gate_up_up[2 * HIDDEN * WIDTH];
    real down_up[WIDTH * HIDDEN];
    real qkv_down[QKV * WIDTH], output_down[WIDTH * HEAD], gate_up_down[2 * HIDDEN * WIDTH];
    real down_down[WIDTH * HIDDEN];
} layer_panels;

typedef struct {
    layer_panels layers[LAYERS];
    real head_up[WIDTH * VOCABULARY], head_down[TOKENS * WIDTH];
    real embedding[TOKENS * WIDTH];
    /* The first layer's rows, which depend on the token alone. */
    real normed[(TOKENS + TILE) * WIDTH], inverse[TOKENS + TILE], qkv[(TOKENS + TILE) * QKV];
} policy;

/* The row of the flat matrix that is row r of the packed one. */
INLINE long unpaired(long r)
{
    if (r >= 2 * HEAD) return r; /* values */
    const long in_head = r % HEAD;
    return r - in_head + (in_head < PAIRS ? 2 * in_head : 2 * (in_head - PAIRS) + 1);
}

static void pack_up(const real *matrix, long out, long in, const real *norm, int paired, long width,
                    real *panels)
{
    for (long j = 0; j < width; j += COLUMNS)
        for (long column = 0; column < COLUMNS; column++) {
            real *to = panels + j * in + column;
            if (j + column >= out) {
                for (long k = 0; k < in; k++) to[k * COLUMNS] = 0;
                continue;
            }
            const real *from = matrix + (paired ? unpaired(j + column) : j + column) * in;
            if (norm)
                for (long k = 0; k < in; k++) to[k * COLUMNS] = from[k] * norm[k];
            else
                for (long k = 0; k < in; k++) to[k * COLUMNS] = from[k];
        }
}

static void pack_down(const real *matrix, long out, long in, const real *norm, int paired,
                      real *panels)
{
    for (long j = 0; j < in; j += COLUMNS) {
        const long columns = in - j < COLUMNS ? LANES : COLUMNS;
        for (long k = 0; k < out; k++) {
            const real *from = matrix + (paired ? unpaired(k) : k) * in + j;
            for (long c = 0; c < columns; c += LANES) {
                const vec x = load(from + c);
                store(panels + j * out + k * columns + c, norm ? x * load(norm + j + c) : x);
            }
        }
    }
}

/* y = x / rms(x), and 1 / rms(x). */
INLINE void norm_row(const real *x, real *y, real *inverse)
{
    vec square = {0};
    UNROLLED for (int e = 0; e < WIDTH; e += LANES) square += load(x + e) * load(x + e);
    const real scale = 1 / (real)sqrt((double)(total(square) / WIDTH + (real)EPSILON));
    *inverse = scale;
    UNROLLED for (int e = 0; e < WIDTH; e += LANES) store(y + e, load(x + e) * scale);
}

static void pack_one(const real *flat, policy *to)
{
    for (int number = 0; number < LAYERS; number++) {
        const real *from = flat + FIRST_LAYER + number * LAYER_SIZE;
        layer_panels *layer = &to->layers[number];
        const real *norm = from + ATTENTION_NORM, *mlp = from + MLP_NORM;
        pack_up(from + QKV_MATRIX, QKV, WIDTH, norm, 1, QKV, layer->qkv_up);
        pack_up(from + OUTPUT_MATRIX, WIDTH, HEAD, NULL, 0, WIDTH, layer->output_up);
        pack_up(from + GATE_UP_MATRIX, 2 * HIDDEN, WIDTH, mlp, 0, 2 * HIDDEN, layer->gate_up_up);
        pack_up(from + DOWN_MATRIX, WIDTH, HIDDEN, NULL, 0, WIDTH, layer->down_up);
        pack_down(from + QKV_MATRIX, QKV, WIDTH, norm, 1, layer->qkv_down);
        pack_down(from + OUTPUT_MATRIX, WIDTH, HEAD, NULL, 0, layer->output_down);
        pack_down(from + GATE_UP_MATRIX, 2 * HIDDEN, WIDTH, mlp, 0, layer->gate_up_down);
        pack_down(from + DOWN_MATRIX, WIDTH, HIDDEN, NULL, 0, layer->down_down);
    }
    pack_up(flat + HEAD_MATRIX, TOKENS, WIDTH, flat + NORM, 0, VOCABULARY, to->head_up);
    pack_down(flat + HEAD_MATRIX, TOKENS, WIDTH, flat + NORM, 0, to->head_down);
    memcpy(to->embedding, flat, sizeof to->embedding);
    for (int token = 0; token < TOKENS; token++)
        norm_row(flat + token * WIDTH, to->normed + token * WIDTH, to->inverse + token);
    times(to->normed, WIDTH, TOKENS, WIDTH, to->layers[0].qkv_up, WIDTH, QKV, to->qkv, QKV, 0);
}

/* What a layer keeps of each node for the backward pass. */
typedef struct {
    real *normed, *inverse, *qkv, *chances, *mixed, *normed_mlp, *inverse_mlp, *gate_up, *product;
} layer_rows;

/* The responses to the prompts of one cell, and a forward pass over them. */
typedef struct {
    int64_t prompts, size, longest, keep, capacity;
    int64_t reach;  /* a path's longest length, in whole vectors */
    int64_t nodes;  /* so far */
    int64_t silent; /* of them, before the last token of a prompt: nothing is predicted there */
    real temperature;
    int64_t rounding;
    int32_t *token, *depth, *path, *child;
    int32_t *response_token, *response_node; /* [prompts, size, longest]; the node that predicts */
    layer_rows layers[LAYERS];
    real *top, *top_inverse, *x, *logps, *entropy;
    const real *turns; /* [position, query or key, cosine or sine, PAIRS] */
} tree;

static char *placed(char **at, size_t bytes)
{
    char *place = *at;
    *at += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return place;
}

/* Lay a tree out behind its own struct. Return the bytes of both; NULL counts only. */
static size_t laid_out(tree *t, char *base)
{
    char *at = base + (sizeof(tree) + ALIGNED - 1) / ALIGNED * ALIGNED;
    const size_t all = (size_t)t->capacity + TILE, kept = t->keep ? all : CHUNK + TILE;
    const size_t responses = (size_t)(t->prompts * t->size * t->longest);
#define INTS(count) (int32_t *)placed(&at, (count) * sizeof(int32_t))
#define REALS(count) (real *)placed(&at, (count) * sizeof(real))
    t->token = INTS(all), t->depth = INTS(all);
    t->path = INTS(all * (size_t)t->reach), t->child = INTS((all + 1) * TOKENS);
    t->response_token = INTS(responses), t->response_node = INTS(responses);
    t->x = REALS(all * WIDTH), t->logps = REALS(all * VOCABULARY), t->entropy = REALS(all);
    for (int number = 0; number < LAYERS; number++) {
        layer_rows *of = &t->layers[number];
        of->qkv = REALS(all * QKV);
        if (number && !t->keep) {
            real *keys = of->qkv;
            *of = t->layers[0], of->qkv = keys;
            continue;
        }
        of->normed = REALS(kept * WIDTH), of->inverse = REALS(kept);
        of->chances = REALS(kept * (size_t)t->reach), of->mixed = REALS(kept * HEAD);
        of->normed_mlp = REALS(kept * WIDTH), of->inverse_mlp = REALS(kept);
        of->gate_up = REALS(kept * 2 * HIDDEN), of->product = REALS(kept * HIDDEN);
    }
    t->top = REALS(kept * WIDTH), t->top_inverse = REALS(kept);
    return (size_t)(at - base);
}

static tree planned(int64_t prompts, int64_t size, int64_t longest, int64_t keep)
{
    tree t = {.prompts = prompts, .size = size, .longest = longest, .keep = keep};
    t.capacity = prompts * (PROMPT + size * (longest - 1));
    t.reach = (PROMPT + longest - 1 + LANES - 1) / LANES * LANES;
    return t;
}

/* The node of `token` behind `before` (-1: at the beginning). It is made if it is not there. */
INLINE int32_t step(tree *t, int32_t before, int32_t token)
{
    int32_t *child = t->child + (int64_t)(before + 1) * TOKENS + token;
    if (*child >= 0) return *child;
    const int32_t node = (int32_t)t->nodes++;
    const int32_t depth = before < 0 ? 0 : t->depth[before] + 1;
    int32_t *path = t->path + node * t->reach;
    if (before >= 0) memcpy(path, t->path + before * t->reach, (size_t)depth * sizeof(int32_t));
    path[depth] = node;
    t->token[node] = token, t->depth[node] = depth;
    memset(t->child + (int64_t)(node + 1) * TOKENS, -1, TOKENS * sizeof(int32_t));
    return *child = node;
}

/* Begin a tree with the prompts [P, PROMPT]. `last` [P] receives the node of each last token. */
static void plant(tree *t, const int64_t *prompts, int32_t *last)
{
    t->nodes = t->silent = 0;
    memset(t->child, -1, TOKENS * sizeof(int32_t));
    for (int64_t p = 0; p < t->prompts; p++) last[p * t->size * t->longest] = -1;
    for (int depth = 0; depth < PROMPT; depth++) {
        if (depth == PROMPT - 1) t->silent = t->nodes;
        for (int64_t p = 0; p < t->prompts; p++) {
            int32_t *node = last + p * t->size * t->longest;
            *node = step(t, *node, (int32_t)prompts[p * PROMPT + depth]);
        }
    }
}

INLINE void rotate(const real *from, const real *turns, real *to, const real sign)
{
    UNROLLED for (int e = 0; e < PAIRS; e += LANES) {
        const vec a = load(from + e), b = load(from + PAIRS + e);
        const vec cosine = load(turns + e), sine = load(turns + PAIRS + e) * sign;
        store(to + e, a * cosine - b * sine);
        store(to + PAIRS + e, a * sine + b * cosine);
    }
}

INLINE const real *turn_of(const tree *t, int64_t node, int key)
{
    return t->turns + (t->depth[node] * 2 + key) * 2 * PAIRS;
}

/* The attention of one node over its path. */
static void attend(const tree *t, const real *qkv, int64_t node, real *chances, real *mixed)
{
    const int32_t *path = t->path + node * t->reach;
    const int length = t->depth[node] + 1;
    const real *query = qkv + node * QKV;
    for (int j = 0; j < length; j++) {
        const real *key = qkv + path[j] * (int64_t)QKV + HEAD;
        vec score = {0};
        UNROLLED for (int e = 0; e < HEAD; e += LANES) score += load(query + e) * load(key + e);
        chances[j] = total(score);
    }
    real most = chances[0], sum = 0;
    for (int j = 1; j < length; j++) most = chances[j] > most ? chances[j] : most;
    for (int j = length; j < t->reach; j++) chances[j] = -INFINITY;
    vec sums = {0};
    for (int j = 0; j < t->reach; j += LANES) {
        const vec mass = exponential(load(chances + j) - most);
        store(chances + j, mass);
        sums += mass;
    }
    sum = 1 / total(sums);
    for (int j = 0; j < t->reach; j += LANES) store(chances + j, load(chances + j) * sum);
    vec into[HEAD / LANES] = {{0}};
    for (int j = 0; j < length; j++) {
        const real *value = qkv + path[j] * (int64_t)QKV + 2 * HEAD;
        UNROLLED for (int e = 0; e < HEAD / LANES; e++)
            into[e] += chances[j] * load(value + e * LANES);
    }
    UNROLLED for (int e = 0; e < HEAD / LANES; e++) store(mixed + e * LANES, into[e]);
}

INLINE void gate(const real *gate_up, real *product)
{
    UNROLLED for (int e = 0; e < HIDDEN; e += LANES) {
        const vec x = load(gate_up + e);
        store(product + e, x / (1 + exponential(-x)) * load(gate_up + HIDDEN + e));
    }
}

/* A logit as a 16-bit engine holds it: 1 bf16, 2 fp16. Ties go to even. */
static real rounded(real x, int64_t format)
{
    float value = (float)x;
    uint32_t bits;
    if (!isfinite(value)) return x;
    memcpy(&bits, &value, sizeof bits);
    if (format == 1) {
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    } else if (fabsf(value) < 0x1p-14f) {
        return rintf(value * 0x1p24f) * 0x1p-24f;
    } else {
        bits = (bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000;
    }
    memcpy(&value, &bits, sizeof value);
    return format == 2 && fabsf(value) > 65504 ? copysignf(INFINITY, value) : value;
}

/* Log-probabilities of a row of logits, in place, and their entropy. What pads a row is 0. */
static void log_softmax(tree *t, real *logits, real *entropy)
{
    if (t->rounding)
        for (int v = 0; v < TOKENS; v++) logits[v] = rounded(logits[v], t->rounding);
    for (int v = 0; v < VOCABULARY; v += LANES)
        store(logits + v, load(logits + v) / t->temperature);
    for (int v = TOKENS; v < VOCABULARY; v++) logits[v] = -INFINITY;
    real most = logits[0];
    for (int v = 1; v < TOKENS; v++) most = logits[v] > most ? logits[v] : most;
    vec mass[VOCABULARY / LANES], sums = {0}, along = {0};
    for (int v = 0; v < VOCABULARY / LANES; v++) {
        store(logits + v * LANES, load(logits + v * LANES) - most);
        mass[v] = exponential(load(logits + v * LANES));
        sums += mass[v];
    }
    const real sum = total(sums), less = (real)log((double)sum);
    for (int v = 0; v < VOCABULARY; v += LANES) store(logits + v, load(logits + v) - less);
    for (int v = TOKENS; v < VOCABULARY; v++) logits[v] = 0;
    for (int v = 0; v < VOCABULARY / LANES; v++) along += mass[v] * load(logits + v * LANES);
    *entropy = -total(along) / sum;
}

/* Compute the nodes [from, to). What they attend to must have been computed. */
static void forward(const policy *p, tree *t, int64_t from, int64_t to)
{
    const int64_t loud = from > t->silent ? from : t->silent;
    for (int64_t node = from; node < to; node++)
        memcpy(t->x + node * WIDTH, p->embedding + t->token[node] * WIDTH, WIDTH * sizeof(real));
    for (int number = 0; number < LAYERS; number++) {
        const layer_panels *panels = &p->layers[number];
        const layer_rows *of = &t->layers[number];
        const int last = number == LAYERS - 1;
        if (number == 0)
            for (int64_t node = from; node < to; node++) {
                const real *row = p->qkv + t->token[node] * QKV;
                real *into = of->qkv + node * QKV;
                rotate(row, turn_of(t, node, 0), into, 1);
                rotate(row + HEAD, turn_of(t, node, 1), into + HEAD, 1);
                memcpy(into + 2 * HEAD, row + 2 * HEAD, HEAD * sizeof(real));
            }
        else
            for (int64_t at = from; at < to; at += CHUNK) {
                const int64_t rows = to - at < CHUNK ? to - at : CHUNK, kept = t->keep ? at : 0;
                real *normed = of->normed + kept * WIDTH, *qkv = of->qkv + at * QKV;
                for (int64_t i = 0; i < rows; i++)
                    norm_row(t->x + (at + i) * WIDTH, normed + i * WIDTH, of->inverse + kept + i);
                times(normed, WIDTH, rows, WIDTH, panels->qkv_up, WIDTH, QKV, qkv, QKV, 0);
                for (int64_t i = 0; i < rows; i++) {
                    real *row = qkv + i * QKV;
                    rotate(row, turn_of(t, at + i, 0), row, 1);
                    rotate(row + HEAD, turn_of(t, at + i, 1), row + HEAD, 1);
                }
            }
        /* Above the last attention only the rows that predict matter. */
        for (int64_t at = last ? loud : from; at < to; at += CHUNK) {
            const int64_t rows = to - at < CHUNK ? to - at : CHUNK, kept = t->keep ? at : 0;
            real *x = t->x + at * WIDTH, *mixed = of->mixed + kept * HEAD;
            real *normed = of->normed_mlp + kept * WIDTH, *product = of->product + kept * HIDDEN;
            real *gate_up = of->gate_up + kept * 2 * HIDDEN;
            for (int64_t i = 0; i < rows; i++)
                attend(t, of->qkv, at + i, of->chances + (kept + i) * t->reach, mixed + i * HEAD);
            times(mixed, HEAD, rows, HEAD, panels->output_up, HEAD, WIDTH, x, WIDTH, 1);
            for (int64_t i = 0; i < rows; i++)
                norm_row(x + i * WIDTH, normed + i * WIDTH, of->inverse_mlp + kept + i);
            times(normed, WIDTH, rows, WIDTH, panels->gate_up_up, WIDTH, 2 * HIDDEN, gate_up,
                  2 * HIDDEN, 0);
            for (int64_t i = 0; i < rows; i++)
                gate(gate_up + i * 2 * HIDDEN, product + i * HIDDEN);
            times(product, HIDDEN, rows, HIDDEN, panels->down_up, HIDDEN, WIDTH, x, WIDTH, 1);
        }
    }
    for (int64_t at = loud; at < to; at += CHUNK) {
        const int64_t rows = to - at < CHUNK ? to - at : CHUNK, kept = t->keep ? at : 0;
        real *top = t->top + kept * WIDTH, *logps = t->logps + at * VOCABULARY;
        for (int64_t i = 0; i < rows; i++)
            norm_row(t->x + (at + i) * WIDTH, top + i * WIDTH, t->top_inverse + kept + i);
        times(top, WIDTH, rows, WIDTH, p->head_up, WIDTH, VOCABULARY, logps, VOCABULARY, 0);
        for (int64_t i = 0; i < rows; i++)
            log_softmax(t, logps + i * VOCABULARY, t->entropy + at + i);
    }
}

/* The inverse CDF of a node's distribution at `uniform`, among the first `top_p` of its mass. */
static int32_t drawn(const real *logps, real uniform, real top_p)
{
    real mass[VOCABULARY], heights[TOKENS], height = 0;
    for (int v = 0; v < VOCABULARY; v += LANES) store(mass + v, exponential(load(logps + v)));
    if (top_p < 1) {
        int order[TOKENS];
        for (int v = 0; v < TOKENS; v++) {
            int at = v;
            for (; at > 0 && mass[order[at - 1]] < mass[v]; at--) order[at] = order[at - 1];
            order[at] = v;
        }
        /* The mass before a token decides: the token that crosses top_p is still inside. */
        real before = 0;
        for (int i = 0; i < TOKENS; i++) {
            const real own = mass[order[i]];
            if (before >= top_p) mass[order[i]] = 0;
            before += own;
        }
    }
    for (int v = 0; v < TOKENS; v++) heights[v] = height += mass[v];
    /* Times the whole mass, because it is less than 1 after top_p and by rounding. */
    const real level = uniform * height;
    int32_t token = 0;
    for (int v = 0; v < TOKENS; v++) token += heights[v] <= level;
    return token < TOKENS ? token : TOKENS - 1;
}

/* What callers read of a forward pass. All but logp may be NULL. */
typedef struct {
    real *logp, *entropy; /* [P, G, T], 0 where masked */
    real *logps;          /* [P, 1 + G (T - 1), TOKENS], 0 where nothing was computed */
} readings;

static void write_out(const tree *t, readings to)
{
    const int64_t size = t->size, longest = t->longest, packed = 1 + size * (longest - 1);
    if (to.logps) memset(to.logps, 0, (size_t)(t->prompts * packed * TOKENS) * sizeof(real));
    for (int64_t at = 0; at < t->prompts * size * longest; at++) {
        const int64_t node = t->response_node[at], token = at % longest;
        to.logp[at] = node < 0 ? 0 : t->logps[node * VOCABULARY + t->response_token[at]];
        if (to.entropy) to.entropy[at] = node < 0 ? 0 : t->entropy[node];
        if (!to.logps || node < 0) continue;
        const int64_t prompt = at / (size * longest), response = at / longest % size;
        const int64_t row = token ? 1 + response * (longest - 1) + token - 1 : 0;
        memcpy(to.logps + (prompt * packed + row) * TOKENS, t->logps + node * VOCABULARY,
               TOKENS * sizeof(real));
    }
}

/* --- What fused.py calls. A loop over cells is here, so that a call costs once. --- */

size_t policy_bytes(void) { return (sizeof(policy) + ALIGNED - 1) / ALIGNED * ALIGNED; }

size_t tree_bytes(int64_t prompts, int64_t size, int64_t longest, int64_t keep)
{
    tree t = planned(prompts, size, longest, keep);
    return laid_out(&t, NULL);
}

void pack(int64_t cells, const real *flat, char *policies)
{
    for (int64_t cell = 0; cell < cells; cell++)
        pack_one(flat + cell * SIZE, (policy *)(policies + cell * (int64_t)policy_bytes()));
}

typedef struct {
    int64_t cells, prompts, size, longest, keep, rounding;
    const char *policies;
    char *const *trees; /* one each */
    const float *temperature;
    const real *turns;
} pass;

static tree *begun(const pass *of, int64_t cell)
{
    tree *t = (tree *)of->trees[cell];
    *t = planned(of->prompts, of->size, of->longest, of->keep);
    laid_out(t, (char *)t);
    t->temperature = (real)of->temperature[cell];
    t->rounding = of->rounding;
    t->turns = of->turns;
    return t;
}

static const policy *policy_of(const pass *of, int64_t cell)
{
    return (const policy *)(of->policies + cell * (int64_t)policy_bytes());
}

static readings part_of(readings whole, const pass *of, int64_t cell)
{
    const int64_t responses = of->prompts * of->size * of->longest;
    const int64_t packed = of->prompts * (1 + of->size * (of->longest - 1)) * TOKENS;
    return (readings){
        whole.logp + cell * responses,
        whole.entropy ? whole.entropy + cell * responses : NULL,
        whole.logps ? whole.logps + cell * packed : NULL,
    };
}

/* Sample a response of each row, by `uniforms` [prompts, size, longest] of each cell. */
void sample(const pass *of, const int64_t *prompts, const float *uniforms, const double *top_p,
            int64_t *tokens, float *mask, real *logp, real *entropy, real *logps)
{
    const int64_t size = of->size, longest = of->longest, all = of->prompts * size;
    for (int64_t cell = 0; cell < of->cells; cell++) {
        tree *t = begun(of, cell);
        const policy *p = policy_of(of, cell);
        const float *draws = uniforms + cell * all * longest;
        int64_t *out = tokens + cell * all * longest, done = 0;
        float *alive = mask + cell * all * longest;
        plant(t, prompts + cell * of->prompts * PROMPT, t->response_node);
        for (int64_t at = 0; at < all * longest; at++) {
            const int64_t response = at / longest, first = response / size * size * longest;
            if (at != first) t->response_node[at] = at % longest ? -1 : t->response_node[first];
            t->response_token[at] = PAD, out[at] = PAD, alive[at] = 0;
        }
        for (int64_t step_number = 0; step_number < longest && done < t->nodes; step_number++) {
            forward(p, t, done, t->nodes);
            done = t->nodes;
            for (int64_t at = step_number; at < all * longest; at += longest) {
                const int32_t node = t->response_node[at];
                if (node < 0) continue;
                const real *row = t->logps + (int64_t)node * VOCABULARY;
                const int32_t token = drawn(row, (real)draws[at], (real)top_p[cell]);
                out[at] = t->response_token[at] = token, alive[at] = 1;
                if (token != EOS && step_number + 1 < longest)
                    t->response_node[at + 1] = step(t, node, token);
            }
        }
        write_out(t, part_of((readings){logp, entropy, logps}, of, cell));
    }
}

void score(const pass *of, const int64_t *prompts, const int64_t *tokens, const float *mask,
           real *logp, real *entropy, real *logps)
{
    const int64_t size = of->size, longest = of->longest, all = of->prompts * size;
    for (int64_t cell = 0; cell < of->cells; cell++) {
        tree *t = begun(of, cell);
        const int64_t *given = tokens + cell * all * longest;
        const float *alive = mask + cell * all * longest;
        plant(t, prompts + cell * of->prompts * PROMPT, t->response_node);
        for (int64_t response = 0; response < all; response++)
            t->response_node[response * longest] =
                t->response_node[response / size * size * longest];
        for (int64_t place = 0; place < longest; place++)
            for (int64_t at = place; at < all * longest; at += longest) {
                t->response_token[at] = (int32_t)given[at];
                if (alive[at] == 0) t->response_node[at] = -1;
                if (place + 1 == longest) continue;
                const int goes_on = alive[at] != 0 && alive[at + 1] != 0;
                t->response_node[at + 1] =
                    goes_on ? step(t, t->response_node[at], (int32_t)given[at]) : -1;
            }
        forward(policy_of(of, cell), t, 0, t->nodes);
        write_out(t, part_of((readings){logp, entropy, logps}, of, cell));
    }
}

/* What the backward pass of one cell needs beside its tree. */
typedef struct {
    real *x, *qkv, *logits; /* slopes, of each node */
    real *wide, *narrow;    /* of a chunk: 2 HIDDEN, WIDTH */
    real *matrix;           /* of a folded matrix, and of OUTPUTS rows of the head */
} slopes;

static size_t slopes_laid_out(const tree *t, slopes *s, char *base)
{
    char *at = base;
    const size_t all = (size_t)t->nodes + TILE;
    s->x = REALS(all * WIDTH), s->qkv = REALS(all * QKV), s->logits = REALS(all * VOCABULARY);
    s->wide = REALS((CHUNK + TILE) * 3 * HIDDEN), s->narrow = REALS((CHUNK + TILE) * WIDTH);
    s->matrix = REALS((2 * HIDDEN + QKV + TILE) * WIDTH);
    return (size_t)(at - base);
}

/* The gradients of a matrix M and of the norm n that is folded into it: the folded matrix is M n, so
   that M has the slope times n, and n the slope times M, summed over outputs. */
static void unfold(const real *slope, const real *matrix, const real *norm, long out, int paired,
                   real *of_matrix, real *of_norm)
{
    vec sums[WIDTH / LANES] = {{0}};
    for (long o = 0; o < out; o++) {
        const long row = (paired ? unpaired(o) : o) * WIDTH;
        UNROLLED for (int e = 0; e < WIDTH / LANES; e++) {
            const vec x = load(slope + o * WIDTH + e * LANES);
            sums[e] += x * load(matrix + row + e * LANES);
            store(of_matrix + row + e * LANES, x * load(norm + e * LANES));
        }
    }
    UNROLLED for (int e = 0; e < WIDTH / LANES; e++) store(of_norm + e * LANES, sums[e]);
}

/* With y = x / rms(x), the slope in x is (slope - y mean(slope y)) / rms(x). It is added to `to`. */
INLINE void of_norm_row(const real *slope, const real *normed, real inverse, real *to)
{
    vec along = {0};
    UNROLLED for (int e = 0; e < WIDTH; e += LANES) along += load(slope + e) * load(normed + e);
    const real mean = total(along) / WIDTH;
    UNROLLED for (int e = 0; e < WIDTH; e += LANES)
        store(to + e, load(to + e) + (load(slope + e) - load(normed + e) * mean) * inverse);
}

/* The slope of gate_up, of the slope in the product. */
INLINE void of_gate(const real *of_product, const real *gate_up, real *to)
{
    UNROLLED for (int e = 0; e < HIDDEN; e += LANES) {
        const vec x = load(gate_up + e), up = load(gate_up + HIDDEN + e);
        const vec slope = load(of_product + e), chance = 1 / (1 + exponential(-x));
        store(to + HIDDEN + e, slope * (x * chance));
        store(to + e, slope * up * (chance * (1 + x * (1 - chance))));
    }
}

/* The slopes of queries, keys and values on a node's path, of the slope in what attention gave. */
static void of_attention(const tree *t, const real *qkv, int64_t node, const real *chances,
                         const real *of_mixed, real *of_qkv)
{
    const int32_t *path = t->path + node * t->reach;
    const int length = t->depth[node] + 1;
    real of_chances[LONGEST];
    real along = 0;
    for (int j = 0; j < length; j++) {
        const real *value = qkv + path[j] * (int64_t)QKV + 2 * HEAD;
        real *of_value = of_qkv + path[j] * (int64_t)QKV + 2 * HEAD;
        vec slope = {0};
        UNROLLED for (int e = 0; e < HEAD; e += LANES) {
            slope += load(of_mixed + e) * load(value + e);
            store(of_value + e, load(of_value + e) + load(of_mixed + e) * chances[j]);
        }
        of_chances[j] = total(slope);
        along += of_chances[j] * chances[j];
    }
    const real *query = qkv + node * QKV;
    vec of_query[HEAD / LANES] = {{0}};
    for (int j = 0; j < length; j++) {
        /* The slope of a softmax: chances (slope - sum(slope chances)). */
        const real of_score = chances[j] * (of_chances[j] - along);
        const real *key = qkv + path[j] * (int64_t)QKV + HEAD;
        real *of_key = of_qkv + path[j] * (int64_t)QKV + HEAD;
        UNROLLED for (int e = 0; e < HEAD / LANES; e++) {
            of_query[e] += of_score * load(key + e * LANES);
            store(of_key + e * LANES,
                  load(of_key + e * LANES) + of_score * load(query + e * LANES));
        }
    }
    real *to = of_qkv + node * QKV;
    UNROLLED for (int e = 0; e < HEAD / LANES; e++) store(to + e * LANES, of_query[e]);
}

static void of_logits(const tree *t, const real *of_logp, const real *of_logps, real *to)
{
    const int64_t size = t->size, longest = t->longest, packed = 1 + size * (longest - 1);
    const int64_t predicting = t->nodes - t->silent;
    memset(to, 0, (size_t)(predicting * VOCABULARY) * sizeof(real));
    for (int64_t at = 0; at < t->prompts * size * longest; at++) {
        if (t->response_node[at] < 0) continue;
        real *slope = to + (t->response_node[at] - t->silent) * VOCABULARY;
        slope[t->response_token[at]] += of_logp[at];
        const int64_t prompt = at / (size * longest), response = at / longest % size;
        /* The prompt's last position is one packed row of all its responses. */
        if (!of_logps || (at % longest == 0 && response)) continue;
        const int64_t row = at % longest ? response * (longest - 1) + at % longest : 0;
        const real *further = of_logps + (prompt * packed + row) * TOKENS;
        for (int v = 0; v < TOKENS; v++) slope[v] += further[v];
    }
    for (int64_t node = 0; node < predicting; node++) {
        /* The slope of log_softmax: the slope minus the probabilities times its sum. */
        real *slope = to + node * VOCABULARY;
        const real *logps = t->logps + (t->silent + node) * VOCABULARY;
        vec sums = {0};
        for (int v = 0; v < VOCABULARY; v += LANES) sums += load(slope + v);
        const real sum = total(sums);
        for (int v = 0; v < VOCABULARY; v += LANES)
            store(slope + v,
                  (load(slope + v) - exponential(load(logps + v)) * sum) / t->temperature);
        for (int v = TOKENS; v < VOCABULARY; v++) slope[v] = 0;
    }
}

static void backward(const real *flat, const policy *p, const tree *t, slopes *s, real *into)
{
    const int64_t nodes = t->nodes, silent = t->silent;
    memset(s->x, 0, (size_t)(nodes * WIDTH) * sizeof(real));
    for (int64_t at = silent; at < nodes; at += CHUNK) {
        const int64_t rows = nodes - at < CHUNK ? nodes - at : CHUNK;
        const real *of_logits = s->logits + (at - silent) * VOCABULARY;
        outer(of_logits, VOCABULARY, OUTPUTS, t->top + at * WIDTH, WIDTH, WIDTH, rows, s->matrix,
              at > silent);
        times(of_logits, VOCABULARY, rows, TOKENS, p->head_down, TOKENS, WIDTH, s->narrow, WIDTH,
              0);
        for (int64_t i = 0; i < rows; i++)
            of_norm_row(s->narrow + i * WIDTH, t->top + (at + i) * WIDTH, t->top_inverse[at + i],
                        s->x + (at + i) * WIDTH);
    }
    unfold(s->matrix, flat + HEAD_MATRIX, flat + NORM, TOKENS, 0, into + HEAD_MATRIX, into + NORM);
    for (int number = LAYERS - 1; number >= 0; number--) {
        const layer_panels *panels = &p->layers[number];
        const layer_rows *of = &t->layers[number];
        const real *own = flat + FIRST_LAYER + number * LAYER_SIZE;
        real *out = into + FIRST_LAYER + number * LAYER_SIZE;
        const int64_t first = number == LAYERS - 1 ? silent : 0;
        memset(s->qkv, 0, (size_t)(nodes * QKV) * sizeof(real));
        for (int64_t at = first; at < nodes; at += CHUNK) {
            const int64_t rows = nodes - at < CHUNK ? nodes - at : CHUNK;
            const int add = at > first;
            real *x = s->x + at * WIDTH, *of_product = s->wide + (CHUNK + TILE) * 2 * HIDDEN;
            const real *normed = of->normed_mlp + at * WIDTH;
            /* the gated MLP */
            outer(x, WIDTH, WIDTH, of->product + at * HIDDEN, HIDDEN, HIDDEN, rows,
                  out + DOWN_MATRIX, add);
            times(x, WIDTH, rows, WIDTH, panels->down_down, WIDTH, HIDDEN, of_product, HIDDEN, 0);
            for (int64_t i = 0; i < rows; i++)
                of_gate(of_product + i * HIDDEN, of->gate_up + (at + i) * 2 * HIDDEN,
                        s->wide + i * 2 * HIDDEN);
            outer(s->wide, 2 * HIDDEN, 2 * HIDDEN, normed, WIDTH, WIDTH, rows, s->matrix, add);
            times(s->wide, 2 * HIDDEN, rows, 2 * HIDDEN, panels->gate_up_down, 2 * HIDDEN, WIDTH,
                  s->narrow, WIDTH, 0);
            for (int64_t i = 0; i < rows; i++)
                of_norm_row(s->narrow + i * WIDTH, normed + i * WIDTH, of->inverse_mlp[at + i],
                            x + i * WIDTH);
            /* attention */
            outer(x, WIDTH, WIDTH, of->mixed + at * HEAD, HEAD, HEAD, rows, out + OUTPUT_MATRIX,
                  add);
            times(x, WIDTH, rows, WIDTH, panels->output_down, WIDTH, HEAD, s->narrow, HEAD, 0);
            for (int64_t i = 0; i < rows; i++)
                of_attention(t, of->qkv, at + i, of->chances + (at + i) * t->reach,
                             s->narrow + i * HEAD, s->qkv);
        }
        unfold(s->matrix, own + GATE_UP_MATRIX, own + MLP_NORM, 2 * HIDDEN, 0,
               out + GATE_UP_MATRIX, out + MLP_NORM);
        for (int64_t node = 0; node < nodes; node++) {
            real *row = s->qkv + node * QKV;
            rotate(row, turn_of(t, node, 0), row, -1);
            rotate(row + HEAD, turn_of(t, node, 1), row + HEAD, -1);
        }
        if (number == 0) {
            /* The rows of the first layer depend on their tokens alone. */
            real *of_tokens = s->wide, *of_embedding = into;
            memset(of_tokens, 0, TOKENS * QKV * sizeof(real));
            memset(of_embedding, 0, TOKENS * WIDTH * sizeof(real));
            for (int64_t node = 0; node < nodes; node++) {
                const int32_t token = t->token[node];
                UNROLLED for (int e = 0; e < QKV; e += LANES)
                    store(of_tokens + token * QKV + e,
                          load(of_tokens + token * QKV + e) + load(s->qkv + node * QKV + e));
                UNROLLED for (int e = 0; e < WIDTH; e += LANES)
                    store(of_embedding + token * WIDTH + e,
                          load(of_embedding + token * WIDTH + e) + load(s->x + node * WIDTH + e));
            }
            outer(of_tokens, QKV, QKV, p->normed, WIDTH, WIDTH, TOKENS, s->matrix, 0);
            times(of_tokens, QKV, TOKENS, QKV, panels->qkv_down, QKV, WIDTH, s->narrow, WIDTH, 0);
            for (int64_t i = 0; i < TOKENS; i++)
                of_norm_row(s->narrow + i * WIDTH, p->normed + i * WIDTH, p->inverse[i],
                            of_embedding + i * WIDTH);
        } else
            for (int64_t at = 0; at < nodes; at += CHUNK) {
                const int64_t rows = nodes - at < CHUNK ? nodes - at : CHUNK;
                const real *of_qkv = s->qkv + at * QKV, *normed = of->normed + at * WIDTH;
                outer(of_qkv, QKV, QKV, normed, WIDTH, WIDTH, rows, s->matrix, at > 0);
                times(of_qkv, QKV, rows, QKV, panels->qkv_down, QKV, WIDTH, s->narrow, WIDTH, 0);
                for (int64_t i = 0; i < rows; i++)
                    of_norm_row(s->narrow + i * WIDTH, normed + i * WIDTH, of->inverse[at + i],
                                s->x + (at + i) * WIDTH);
            }
        unfold(s->matrix, own + QKV_MATRIX, own + ATTENTION_NORM, QKV, 1, out + QKV_MATRIX,
               out + ATTENTION_NORM);
    }
}

/* The bytes that `gradient` needs beside a tree. */
size_t slope_bytes(const char *kept)
{
    slopes s;
    return slopes_laid_out((const tree *)kept, &s, NULL);
}

/* Write the gradient of one cell [SIZE], of a loss with these slopes in logp [P, G, T] and, unless
   NULL, in logps [P, 1 + G (T - 1), TOKENS]. */
void gradient(const real *flat, const char *packed, const char *kept, const real *of_logp,
              const real *of_logps, char *work, real *into)
{
    slopes s;
    const tree *t = (const tree *)kept;
    slopes_laid_out(t, &s, work);
    of_logits(t, of_logp, of_logps, s.logits);
    backward(flat, (const policy *)packed, t, &s, into);
}

typedef struct {
    double beta1, beta2, epsilon, rate, shrink; /* shrink: of weights that decay */
    int64_t step, decays_norms;
} adam;

INLINE void adamw_part(const real *restrict flat, const real *restrict slope, real *restrict first,
                       real *restrict second, real *restrict to, const long count, const adam *how,
                       real shrink)
{
    const real beta2 = (real)how->beta2, epsilon = (real)how->epsilon;
    const real fresh = (real)(1 - how->beta1), fresh2 = (real)(1 - how->beta2);
    const real seen = (real)(1 - pow(how->beta2, (double)how->step));
    const real rate = (real)(how->rate / (1 - pow(how->beta1, (double)how->step)));
    for (long i = 0; i < count; i++) {
        first[i] += fresh * (slope[i] - first[i]);
        second[i] = second[i] * beta2 + fresh2 * slope[i] * slope[i];
        /* epsilon is added after the bias correction and the root */
        const real spread = (sizeof(real) == 4 ? (real)sqrtf((float)(second[i] / seen))
                                               : (real)sqrt((double)(second[i] / seen)));
        to[i] = flat[i] * shrink - rate * (first[i] / (spread + epsilon));
    }
}

/* One step of AdamW, from one flat vector to another; the moments in place. See optimizer.py. */
void adamw(const real *flat, const real *slope, real *first, real *second, real *to,
           const adam *how)
{
    const struct { long size; int is_norm; } parts[] = {
        {WIDTH, 1}, {MLP_NORM - QKV_MATRIX, 0},
        {WIDTH, 1}, {LAYER_SIZE - GATE_UP_MATRIX, 0},
    };
    long at = 0;
#define PART(count, is_norm)                                                                  \
    adamw_part(flat + at, slope + at, first + at, second + at, to + at, count, how,           \
               (is_norm) && !how->decays_norms ? 1 : (real)how->shrink),                      \
        at += (count)
    PART(TOKENS * WIDTH, 0);
    for (int number = 0; number < LAYERS; number++)
        for (int i = 0; i < 4; i++) PART(parts[i].size, parts[i].is_norm);
    PART(WIDTH, 1);
    PART(TOKENS * WIDTH, 0);
}
