/* The loops of graph.c for one instruction set: LEVEL names them, TARGET chooses it, LANES floats fit a register. */

typedef float LEVEL(floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define FLOATS(at) (*(const LEVEL(floats) *)(at))

/* sum(query * code): a multiply-add of pairs, where the processor has one. */
TARGET INLINE int32_t LEVEL(by_code)(const int16_t *query, const uint8_t *code, int64_t dimension) {
    int32_t sum = 0;
    for (int64_t i = 0; i < dimension; i++) sum += (int32_t)query[i] * (int32_t)(int16_t)code[i];
    return sum;
}

/* sum(query * vector). */
TARGET INLINE float LEVEL(exactly)(const float *query, const float *vector, int64_t dimension) {
    LEVEL(floats) a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= dimension; i += 4 * LANES) {
        a += FLOATS(query + i) * FLOATS(vector + i);
        b += FLOATS(query + i + LANES) * FLOATS(vector + i + LANES);
        c += FLOATS(query + i + 2 * LANES) * FLOATS(vector + i + 2 * LANES);
        d += FLOATS(query + i + 3 * LANES) * FLOATS(vector + i + 3 * LANES);
    }
    a = (a + b) + (c + d);
    float sum = 0;
    for (int64_t lane = 0; lane < LANES; lane++) sum += a[lane];
    for (; i < dimension; i++) sum += query[i] * vector[i];
    return sum;
}

TARGET static void LEVEL(search)(const graph *g, const wanted *w, const float *query, places *p, int64_t *out) {
    const int64_t dimension = g->dimension;
    const int16_t *whole = p->query;
    const int64_t head = dimension < LEAST_DIVIDED ? dimension : dimension / HEAD_SHARE;
    int64_t near = 0, count = 0; /* rows found living; rows walked to */
    whole_query(query, dimension, p->query);
    if (g->rows) {
        /* Down the levels, on each to the row that no linked one is nearer than. */
        int64_t at = g->entry;
        int32_t best = LEVEL(by_code)(whole, g->codes + at * dimension, dimension);
        for (int64_t l = g->top; l > 0; l--)
            for (int64_t before = -1; before != at;) {
                before = at;
                const int32_t *link = g->links + g->offsets[at] + g->firsts[l];
                int64_t links = g->firsts[l + 1] - g->firsts[l];
                for (int64_t i = 0; i < AHEAD && i < links; i++)
                    if ((uint64_t)(int64_t)link[i] < (uint64_t)g->rows)
                        ASK_FOR(g->codes + link[i] * dimension, dimension);
                for (int64_t i = 0; i < links && (uint64_t)(int64_t)link[i] < (uint64_t)g->rows; i++) {
                    if (i + AHEAD < links && (uint64_t)(int64_t)link[i + AHEAD] < (uint64_t)g->rows)
                        ASK_FOR(g->codes + link[i + AHEAD] * dimension, dimension);
                    int32_t score = LEVEL(by_code)(whole, g->codes + link[i] * dimension, dimension);
                    if (score > best) best = score, at = link[i];
                }
            }

        if (p->epoch >= 255) {
            for (int64_t i = 0; i < p->marks_size; i++) p->marks[i] = 0;
            p->epoch = 0;
        }
        const uint8_t epoch = (uint8_t)++p->epoch;
        p->marks[at] = epoch;
        p->walk[0] = (walked){at, best, 1};
        count = 1;
        /* Proposed are the best living of all that were compared. Their scores are int32, which a float does not hold:
           equal ones here are told apart by the row, and by float32 vectors afterwards. */
        if (at < w->covered && is_living(w, at)) near = keep(p->rows, p->scores, near, w->proposed, at, (float)best);
        relation of = {0};
        for (int64_t next = 0; next < count;) {
            walked *one = p->walk + next;
            if (!one->open) {
                next++;
                continue;
            }
            one->open = 0;
            const int32_t *link = g->links + g->offsets[one->row] + g->firsts[0];
            int64_t links = g->firsts[1] - g->firsts[0], fresh = 0, left = 0;
            int32_t rows[MOST_LINKS], heads[MOST_LINKS];
            for (int64_t i = 0; i < links; i++) {
                if ((uint64_t)(int64_t)link[i] >= (uint64_t)g->rows) break;
                rows[fresh] = link[i];
                fresh += p->marks[link[i]] != epoch;
                p->marks[link[i]] = epoch;
            }
            /* Most often the next one in the walk is the next whose links are looked at. */
            if (next + 1 < count)
                ASK_FOR(g->links + g->offsets[p->walk[next + 1].row] + g->firsts[0], 4 * links);
            /* First the heads of all codes, then the rest of those that may come near enough. */
            const int sure = count < w->candidates || near < w->proposed;
            const double floor = sure ? 0
                                 : p->walk[count - 1].score < p->scores[near - 1] ? p->walk[count - 1].score
                                                                                  : p->scores[near - 1];
            for (int64_t i = 0; i < HEADS_AHEAD && i < fresh; i++) ASK_FOR(g->codes + rows[i] * dimension, head);
            for (int64_t i = 0; i < fresh; i++) {
                if (i + HEADS_AHEAD < fresh) ASK_FOR(g->codes + rows[i + HEADS_AHEAD] * dimension, head);
                heads[left] = LEVEL(by_code)(whole, g->codes + rows[i] * dimension, head);
                if (!sure && head < dimension && is_hopeless(&of, heads[left], floor)) continue;
                rows[left++] = rows[i];
            }
            for (int64_t i = 0; i < AHEAD && i < left; i++)
                ASK_FOR(g->codes + rows[i] * dimension + head, dimension - head);
            for (int64_t i = 0; i < left; i++) {
                if (i + AHEAD < left) ASK_FOR(g->codes + rows[i + AHEAD] * dimension + head, dimension - head);
                int64_t row = rows[i];
                int32_t rest = LEVEL(by_code)(whole + head, g->codes + row * dimension + head, dimension - head);
                int32_t score = heads[i] + rest;
                learn(&of, heads[i], rest);
                if (row < w->covered && is_living(w, row))
                    near = keep(p->rows, p->scores, near, w->proposed, row, (float)score);
                if (count == w->candidates) {
                    if (p->walk[count - 1].score >= score) continue;
                    count--;
                }
                int64_t to = count++;
                for (; to && p->walk[to - 1].score < score; to--) p->walk[to] = p->walk[to - 1];
                p->walk[to] = (walked){row, score, 1};
                if (to < next) next = to;
                __builtin_prefetch(g->offsets + row);
            }
        }
    }

    /* What is proposed is scored anew, and what the graph does not have yet is compared. */
    for (int64_t i = 0; i < near; i++) ASK_FOR(w->vectors + p->rows[i] * dimension, 4 * dimension);
    int64_t found = 0, *rows_out = p->rows + p->most;
    float *scores_out = p->scores + p->most;
    for (int64_t i = 0; i < near; i++)
        found = keep(rows_out, scores_out, found, w->k, p->rows[i],
                     LEVEL(exactly)(query, w->vectors + p->rows[i] * dimension, dimension));
    for (int64_t row = w->covered; row < w->all_rows; row++)
        if (is_living(w, row))
            found = keep(rows_out, scores_out, found, w->k, row,
                         LEVEL(exactly)(query, w->vectors + row * dimension, dimension));
    *out++ = found;
    *out++ = near;
    for (int64_t i = 0; i < found; i++) {
        out[i] = rows_out[i];
        double score = scores_out[i];
        __builtin_memcpy(out + w->k + i, &score, sizeof score);
    }
}
#undef FLOATS
