// normalize_heads: rms norm of attention_decode's four query heads by q_norm, and of its new key by k_norm.
// Every lane calls it, `heads` being filled; ends in a barrier.
@group(0) @binding(8) var<storage, read> q_norm: array<f32>;
@group(0) @binding(9) var<storage, read> k_norm: array<f32>;
const NORM_PARTS = 8u; // partial sums of squares a head
var<workgroup> norm_parts: array<f32, 5u * NORM_PARTS>;

fn normalize_heads(lane: u32) {
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
