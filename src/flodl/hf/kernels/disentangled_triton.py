"""The Triton kernel of disentangled attention.

Imported only where it runs: it needs Triton, which CUDA builds of torch include.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _load(pointers, mask, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=mask, other=0)


# Lengths change from batch to batch; every specialization would be compiled again.
@triton.jit(
    do_not_specialize=[
        "c2p_batch",
        "c2p_head",
        "c2p_token",
        "p2c_batch",
        "p2c_head",
        "p2c_token",
        "heads",
        "length",
    ]
)
def attend(
    query,
    key,
    value,
    c2p,
    p2c,
    rows,
    real,
    output,
    query_batch,
    query_head,
    query_token,
    key_batch,
    key_head,
    key_token,
    value_batch,
    value_head,
    value_token,
    c2p_batch,
    c2p_head,
    c2p_token,
    p2c_batch,
    p2c_head,
    p2c_token,
    heads,
    length,
    scale,
    position_scale,
    WIDTH: tl.constexpr,
    HAS_C2P: tl.constexpr,
    HAS_P2C: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_REAL: tl.constexpr,
    EVEN: tl.constexpr,
    FULL: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Attend with a block of queries of one head; scales include the factor from exp to exp2.

    The score of a pair is at the column key − query + length − 1 of `c2p` and `p2c`, or with HAS_ROWS at the
    column that `rows` contains for it. With EVEN, no block ends after the sequence; with FULL, heads also
    need no padding to PADDED_WIDTH. COLUMNS is the stride of tokens in `c2p` and `p2c`, or 0 if it is only
    known at run time, which takes many more registers.
    """
    blocks = tl.cdiv(length, QUERIES)
    program = tl.program_id(0)
    group = (program // blocks).to(tl.int64)
    batch = group // heads
    head = group % heads
    i = (program % blocks) * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, PADDED_WIDTH)
    is_query = i < length
    is_width = d < WIDTH

    if COLUMNS > 0:
        c2p_token = COLUMNS
        p2c_token = COLUMNS
    key += batch * key_batch + head * key_head
    value += batch * value_batch + head * value_head
    c2p += batch * c2p_batch + head * c2p_head
    p2c += batch * p2c_batch + head * p2c_head
    real += batch * length
    query += batch * query_batch + head * query_head
    q = _load(query + i[:, None] * query_token + d[None, :], is_query[:, None] & is_width[None, :], FULL)
    if HAS_REAL:
        is_real_query = _load(real + i, is_query, EVEN) != 0

    largest = tl.full([QUERIES], float("-inf"), dtype=tl.float32)
    total = tl.zeros([QUERIES], dtype=tl.float32)
    context = tl.zeros([QUERIES, PADDED_WIDTH], dtype=tl.float32)
    for start in range(0, length, KEYS):
        j = start + tl.arange(0, KEYS)
        is_key = j < length
        # The scores of positions come first: reading them takes longest. Neighboring threads read along the
        # first dimension, so that it has to be the one whose scores are next to each other in memory.
        if HAS_C2P:
            inside = is_key[:, None] & is_query[None, :]
            if HAS_ROWS:
                row = _load(rows + (j[:, None] + (length - 1 - i)[None, :]), inside, EVEN).to(tl.int32)
                at = row + (i * c2p_token)[None, :]
            else:
                at = j[:, None] + (i * c2p_token + (length - 1 - i))[None, :]
            by_query = _load(c2p + at, inside, EVEN)
        if HAS_P2C:
            inside = is_query[:, None] & is_key[None, :]
            if HAS_ROWS:
                row = _load(rows + ((length - 1) - (i[:, None] - j[None, :])), inside, EVEN).to(tl.int32)
                at = row + (j * p2c_token)[None, :]
            else:
                at = (j * p2c_token + (length - 1 + j))[None, :] - i[:, None]
            by_key = _load(p2c + at, inside, EVEN)
        k = _load(key + j[:, None] * key_token + d[None, :], is_key[:, None] & is_width[None, :], FULL)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if HAS_C2P:
            score += tl.trans(by_query).to(tl.float32) * position_scale
        if HAS_P2C:
            score += by_key.to(tl.float32) * position_scale
        if HAS_REAL:
            is_real_key = _load(real + j, is_key, EVEN) != 0
            # Padding attends to all tokens alike. The lowest score stays finite, because all keys of a block
            # may be hidden; what they add is scaled to zero at the first key that is not.
            score = tl.where(is_real_key[None, :], score, -1e30)
            score = tl.where(is_real_query[:, None], score, 0.0)
        if not EVEN:
            score = tl.where(is_key[None, :], score, float("-inf"))
        previous = largest
        largest = tl.maximum(previous, tl.max(score, 1))
        weight = tl.exp2(score - largest[:, None])
        shrink = tl.exp2(previous - largest)
        total = total * shrink + tl.sum(weight, 1)
        v = _load(value + j[:, None] * value_token + d[None, :], is_key[:, None] & is_width[None, :], FULL)
        context = context * shrink[:, None]
        context += tl.dot(weight.to(v.dtype), v, input_precision="ieee")

    hidden = heads * WIDTH
    output += batch * length * hidden + head * WIDTH
    tl.store(
        output + i[:, None] * hidden + d[None, :],
        (context / total[:, None]).to(output.dtype.element_ty),
        mask=is_query[:, None] & is_width[None, :],
    )
