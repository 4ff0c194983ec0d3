// logprobs_merge: log-probabilities of a row's token and of the likeliest ones, from what logprobs_split found
//
// logits, index, count: as in logprobs_split; tokens [any] u32: the row's token is tokens[index[row]]
// found   [rows, num_slices, TOP + 1] vec2
// out     [rows, 2 * TOP + 1] f32, out: of the token, of the TOP likeliest in order, their ids
// grid    (rows, 1, 1); WG lanes share the slices' records
struct Params { vocab_size: u32, num_slices: u32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<i32>;
@group(0) @binding(2) var<storage, read> count: array<u32>;
@group(0) @binding(3) var<storage, read> tokens: array<u32>;
@group(0) @binding(4) var<storage, read> found: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;
const NEG_LARGE = -3.0e38;
#include "include/${reduce}.wgsl"
#include "include/likeliest.wgsl"

var<private> records: u32; // where the row's records and its part of `out` begin
var<private> row_out: u32;
var<private> log_total: f32; // log of the sum of exp(logit)

fn entry(i: u32) -> vec2<f32> { return found[records + i / TOP * (TOP + 1u) + i % TOP]; }

fn keep(place: u32, pair: vec2<f32>) {
  out[row_out + 1u + place] = pair.x - log_total;
  out[row_out + 1u + TOP + place] = pair.y;
}

@compute @workgroup_size(WG)
fn logprobs_merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= count[0] || index[row] < 0) { return; }
  records = row * params.num_slices * (TOP + 1u);
  row_out = row * (2u * TOP + 1u);

  var most = NEG_LARGE;
  for (var i = lane; i < params.num_slices; i += WG) { most = max(most, entry(i * TOP).x); }
  let largest = workgroup_max(most, lane);
  var sum = 0.0;
  for (var i = lane; i < params.num_slices; i += WG) {
    sum += found[records + i * (TOP + 1u) + TOP].x * exp(entry(i * TOP).x - largest);
  }
  let total = workgroup_sum(sum, lane);
  log_total = largest + log(total);
  if (lane == 0u) {
    out[row_out] = logits[row * params.vocab_size + tokens[index[row]]] - log_total;
  }
  likeliest(lane, params.num_slices * TOP);
}
