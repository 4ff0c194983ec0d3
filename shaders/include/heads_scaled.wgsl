// heads_normed for heads of which workgroup memory does not hold five: it holds a scale of each, and values are read
// where they are.
@group(0) @binding(8) var<storage, read> q_norm: array<f32>;
@group(0) @binding(9) var<storage, read> k_norm: array<f32>;
const NORM_PARTS = 8u; // partial sums of squares a head
var<private> first_place: u32; // in qk, of the query heads
var<private> key_place: u32;
var<workgroup> norm_parts: array<f32, 5u * NORM_PARTS>;
var<workgroup> head_scales: array<f32, 5>;

fn place_of(head: u32) -> u32 { return select(first_place + head * HEAD_DIM, key_place, head == KEY_HEAD); }

fn prepare_heads(first_query: u32, num_heads: u32, key_head: u32, lane: u32) {
  first_place = first_query;
  key_place = key_head;
  for (var p = lane; p < 5u * NORM_PARTS; p += WG) {
    let head = p / NORM_PARTS;
    let base = place_of(select(min(head, num_heads - 1u), KEY_HEAD, head == KEY_HEAD));
    var sum = 0.0;
    for (var i = p % NORM_PARTS; i < HEAD_DIM; i += NORM_PARTS) { sum += qk[base + i] * qk[base + i]; }
    norm_parts[p] = sum;
  }
  workgroupBarrier();
  if (lane < 5u) {
    var sum = 0.0;
    for (var p = lane * NORM_PARTS; p < (lane + 1u) * NORM_PARTS; p++) { sum += norm_parts[p]; }
    head_scales[lane] = inverseSqrt(sum / f32(HEAD_DIM) + params.eps);
  }
  workgroupBarrier();
}

fn head_base(head: u32, place: u32) -> u32 { return head * HEAD_DIM; }

fn head_value(i: u32) -> f32 {
  let head = i / HEAD_DIM;
  let dim = i % HEAD_DIM;
  var weight = q_norm[dim];
  if (head == KEY_HEAD) { weight = k_norm[dim]; }
  return qk[place_of(head) + dim] * head_scales[head] * weight;
}
