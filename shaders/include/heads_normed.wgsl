// Heads of attention_decode after rms norm: the query heads by q_norm, the new key by k_norm, in workgroup memory.
// Every lane calls prepare_heads, which ends in a barrier.
@group(0) @binding(8) var<storage, read> q_norm: array<f32>;
@group(0) @binding(9) var<storage, read> k_norm: array<f32>;
const NORM_PARTS = 8u; // partial sums of squares a head
var<workgroup> heads: array<f32, 5u * HEAD_DIM>;
var<workgroup> norm_parts: array<f32, 5u * NORM_PARTS>;

fn prepare_heads(first_query: u32, num_heads: u32, key_head: u32, lane: u32) {
  for (var i = lane; i < 5u * HEAD_DIM; i += WG) {
    var place = first_query + min(i / HEAD_DIM, num_heads - 1u) * HEAD_DIM;
    if (i / HEAD_DIM == KEY_HEAD) { place = key_head; }
    heads[i] = qk[place + i % HEAD_DIM];
  }
  workgroupBarrier();
  for (var p = lane; p < 5u * NORM_PARTS; p += WG) {
    let base = p / NORM_PARTS * HEAD_DIM;
    var sum = 0.0;
    for (var i = p % NORM_PARTS; i < HEAD_DIM; i += NORM_PARTS) { sum += heads[base + i] * heads[base + i]; }
    norm_parts[p] = sum;
  }
  workgroupBarrier();
  for (var i = lane; i < 5u * HEAD_DIM; i += WG) {
    let head = i / HEAD_DIM;
    var sum = 0.0;
    for (var p = head * NORM_PARTS; p < (head + 1u) * NORM_PARTS; p++) { sum += norm_parts[p]; }
    var weight = q_norm[i % HEAD_DIM];
    if (head == KEY_HEAD) { weight = k_norm[i % HEAD_DIM]; }
    heads[i] = heads[i] * inverseSqrt(sum / f32(HEAD_DIM) + params.eps) * weight;
  }
  workgroupBarrier();
}

fn head_base(head: u32, place: u32) -> u32 { return head * HEAD_DIM; }
fn head_value(i: u32) -> f32 { return heads[i]; }
