// logprobs_split: of each slice of the vocabulary, its likeliest tokens and its share of the softmax
//
// logits  [rows, vocab_size] f32, raw     index [rows] i32, negative: the row is left out
// count   [1] u32: rows from it on are not touched
// found   [rows, num_slices, TOP + 1] vec2, out: (logit, token) in order, then (sum of exp(logit - largest), 0)
// grid    (num_slices, rows, 1); WG lanes share a slice of SLICE tokens
struct Params { vocab_size: u32, num_slices: u32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<i32>;
@group(0) @binding(2) var<storage, read> count: array<u32>;
@group(0) @binding(3) var<storage, read_write> found: array<vec2<f32>>;
@group(0) @binding(4) var<uniform> params: Params;
const NEG_LARGE = -3.0e38;
const SLICE = 4096u;
#include "include/${reduce}.wgsl"
#include "include/likeliest.wgsl"

var<private> first: u32; // token of this slice, and where the row and the slice's record begin
var<private> row_start: u32;
var<private> record: u32;

fn entry(i: u32) -> vec2<f32> { return vec2<f32>(logits[row_start + first + i], f32(first + i)); }

fn keep(place: u32, pair: vec2<f32>) { found[record + place] = pair; }

@compute @workgroup_size(WG)
fn logprobs_split(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.y;
  if (row >= count[0] || index[row] < 0) { return; }
  first = group.x * SLICE;
  row_start = row * params.vocab_size;
  record = (row * params.num_slices + group.x) * (TOP + 1u);
  let end = min(SLICE, params.vocab_size - first);

  var most = NEG_LARGE;
  for (var i = lane; i < end; i += WG) { most = max(most, entry(i).x); }
  let largest = workgroup_max(most, lane);
  var sum = 0.0;
  for (var i = lane; i < end; i += WG) { sum += exp(entry(i).x - largest); }
  let total = workgroup_sum(sum, lane);
  if (lane == 0u) { found[record + TOP] = vec2<f32>(total, 0.0); }
  likeliest(lane, end);
}
