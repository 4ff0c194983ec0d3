// attention_decode_merge: joins the splits of attention_decode
//
// split_sums [rows, num_heads, splits, HEAD_DIM + KV_DIMS] f32     context_lens [rows] i32     count [1] u32
// out     as ${target} says: attended_float or attended_int8
// grid    (num_heads, rows, 1); a lane joins one Kv of dims of every PARTS-th split, four in flight
// HEAD_DIM, WG (at least HEAD_DIM / KV_DIMS): const     kv: kv_wide or kv_narrow
struct Params { num_heads: u32, window: u32, splits: u32 }
@group(0) @binding(0) var<storage, read> split_sums: array<Kv>;
@group(0) @binding(1) var<storage, read> context_lens: array<i32>;
@group(0) @binding(2) var<storage, read> count: array<u32>;
@group(0) @binding(14) var<uniform> params: Params;
#include "include/${kv}.wgsl"
#include "include/splits.wgsl"
const WORDS = HEAD_DIM / KV_DIMS;
const PARTS = WG / WORDS;
const HEADS_TOGETHER = 1u;
const NEG_LARGE = -3.0e38;
var<workgroup> part_sums: array<Kv, WG>;
var<workgroup> part_states: array<vec2<f32>, WG>; // largest score, sum of weights
#include "include/${target}.wgsl"

@compute @workgroup_size(WG)
fn attention_decode_merge(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32
) {
  let row = group.y;
  let rows = count[0];
  let context = u32(context_lens[row]);
  if (row >= rows) { return; }
  let live = share_of(0u, context).live;
  let head_row = row * params.num_heads + group.x;
  let entry = head_row * params.splits * (WORDS + 1u);
  let w = lane % WORDS;
  var value = Kv();
  var total = 0.0;
  var most = NEG_LARGE;
  for (var s = lane / WORDS; s < live; s += 4u * PARTS) {
    let at = min(vec4<u32>(s) + vec4<u32>(0u, 1u, 2u, 3u) * PARTS, vec4<u32>(live - 1u)) * (WORDS + 1u) + entry;
    let a = split_sums[at.x + w];
    let b = split_sums[at.y + w];
    let c = split_sums[at.z + w];
    let d = split_sums[at.w + w];
    let mosts = vec4<f32>(
      split_sums[at.x + WORDS].x, split_sums[at.y + WORDS].x, split_sums[at.z + WORDS].x, split_sums[at.w + WORDS].x);
    let totals = vec4<f32>(
      split_sums[at.x + WORDS].y, split_sums[at.y + WORDS].y, split_sums[at.z + WORDS].y, split_sums[at.w + WORDS].y);
    let now = max(most, max(max(mosts.x, mosts.y), max(mosts.z, mosts.w)));
    let there = vec4<u32>(s) + vec4<u32>(0u, 1u, 2u, 3u) * PARTS < vec4<u32>(live);
    let weights = select(vec4<f32>(), exp2(mosts - now), there);
    let shrink = exp2(most - now);
    value = value * shrink + a * weights.x + b * weights.y + c * weights.z + d * weights.w;
    total = total * shrink + dot(totals, weights);
    most = now;
  }
  part_sums[lane] = value;
  part_states[lane] = vec2<f32>(most, total);
  workgroupBarrier();
  if (lane < WORDS) {
    let parts = min(PARTS, live);
    for (var p = 0u; p < parts; p++) { most = max(most, part_states[p * WORDS].x); }
    value = Kv();
    total = 0.0;
    for (var p = 0u; p < parts; p++) {
      let state = part_states[p * WORDS + w];
      let weight = exp2(state.x - most);
      value += part_sums[p * WORDS + w] * weight;
      total += state.y * weight;
    }
    attended(value, 0u, w, head_row, 0u, most, total);
  }
  finish_attended(head_row, 1u, lane);
}
