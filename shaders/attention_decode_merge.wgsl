// attention_decode_merge: joins the splits of attention_decode
//
// split_sums [rows, num_heads, splits, HEAD_DIM + KV_DIMS] f32     context_lens [rows] i32     count [1] u32
// out     as ${target} says: attended_float or attended_int8
// grid    (num_heads, rows, 1); lanes stride over the head's dims
// HEAD_DIM, WG: const     kv: kv_wide or kv_narrow
struct Params { num_heads: u32, window: u32, splits: u32 }
@group(0) @binding(0) var<storage, read> split_sums: array<Kv>;
@group(0) @binding(1) var<storage, read> context_lens: array<i32>;
@group(0) @binding(2) var<storage, read> count: array<u32>;
@group(0) @binding(14) var<uniform> params: Params;
#include "include/${kv}.wgsl"
#include "include/splits.wgsl"
const WORDS = HEAD_DIM / KV_DIMS;
const HEADS_TOGETHER = 1u;
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
  var most = split_sums[entry + WORDS].x;
  for (var s = 1u; s < live; s++) { most = max(most, split_sums[entry + s * (WORDS + 1u) + WORDS].x); }
  for (var w = lane; w < WORDS; w += WG) {
    var value = Kv();
    var total = 0.0;
    for (var s = 0u; s < live; s++) {
      let at = entry + s * (WORDS + 1u);
      let weight = exp(split_sums[at + WORDS].x - most);
      value += split_sums[at + w] * weight;
      total += split_sums[at + WORDS].y * weight;
    }
    attended(value, 0u, w, head_row, 0u, most, total);
  }
  finish_attended(head_row, 1u, lane);
}
