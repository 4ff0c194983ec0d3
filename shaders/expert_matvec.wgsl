// expert_matvec: y[pair, column + i] = expert's weight row i · the input of the pair, for groups of pairs of one expert
//
// quants, scales  a part of a WeightMatrix, through weights/${weight}.wgsl: experts' rows one below the other
// bias    [rows of the whole matrix] f32 or none     x  as in include/matvec_int8.wgsl or include/matvec_float.wgsl; a pair reads row pair / pairs_a_row
// groups  [max_groups, 1 + GROUP] u32 as group_experts writes them     y  [pairs, y_width] f32, out
// grid    (ceil(expert_rows / rows of a workgroup), max_groups, 1); LANES lanes share a weight row, WG lanes a workgroup
// base    the matrix row where expert 0 begins; first_row, num_rows: the rows of this part
// LANES (divides WG), GROUP (1, 4 or 8), WG  const
struct Params {
  units: u32, num_rows: u32, first_row: u32, base: u32, expert_rows: u32, column: u32, y_width: u32, pairs_a_row: u32
}
#include "weights/${weight}.wgsl"
@group(0) @binding(5) var<storage, read> groups: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(12) var<uniform> params: Params;
#include "include/${token}.wgsl"
#include "include/${operand}.wgsl"
#include "include/${lanes}.wgsl"
#include "include/${bias}.wgsl"
const NONE = 0xffffffffu;

// Groups of fewer than GROUP pairs compute their first one again.
fn pair_of(group: u32, place: u32) -> u32 {
  let at = group * (1u + GROUP) + 1u;
  let pair = groups[at + place];
  return select(pair, groups[at], pair == NONE);
}

fn keep(group: u32, place: u32, row: u32, value: f32) {
  let pair = groups[group * (1u + GROUP) + 1u + place];
  if (pair != NONE) { y[pair * params.y_width + params.column + row] = value; }
}

fn row_of(group: u32, place: u32) -> u32 { return pair_of(group, place) / params.pairs_a_row; }

@compute @workgroup_size(WG)
fn expert_matvec(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let expert = groups[group.y * (1u + GROUP)];
  if (expert == NONE) { return; }
  let row = group.x * (WG / LANES) + thread / LANES;
  let wanted = params.base + expert * params.expert_rows + row;
  let here = row < params.expert_rows && wanted >= params.first_row && wanted - params.first_row < params.num_rows;
  let weight_row = select(0u, wanted - params.first_row, here);
  let a = row_of(group.y, 0u);
  let b = row_of(group.y, 1u % GROUP);
  let c = row_of(group.y, 2u % GROUP);
  let d = row_of(group.y, 3u % GROUP);
  let e = row_of(group.y, 4u % GROUP);
  let f = row_of(group.y, 5u % GROUP);
  let g = row_of(group.y, 6u % GROUP);
  let h = row_of(group.y, 7u % GROUP);
  var low = vec4<f32>();
  var high = vec4<f32>();
  for (var u = thread % LANES; u < params.units; u += LANES) {
    let w = load_step(weight_row, u);
    low.x += step_product(w, load_operand(u, a));
    if (GROUP > 1u) {
      low.y += step_product(w, load_operand(u, b));
      low.z += step_product(w, load_operand(u, c));
      low.w += step_product(w, load_operand(u, d));
    }
    if (GROUP > 4u) {
      high.x += step_product(w, load_operand(u, e));
      high.y += step_product(w, load_operand(u, f));
      high.z += step_product(w, load_operand(u, g));
      high.w += step_product(w, load_operand(u, h));
    }
  }
  low = lane_total(low, thread);
  if (GROUP > 4u) { high = lane_total(high, thread); }
  if (thread % LANES != 0u || !here) { return; }
  low += bias_of(wanted);
  high += bias_of(wanted);
  keep(group.y, 0u, row, low.x);
  if (GROUP > 1u) {
    keep(group.y, 1u, row, low.y);
    keep(group.y, 2u, row, low.z);
    keep(group.y, 3u, row, low.w);
  }
  if (GROUP > 4u) {
    keep(group.y, 4u, row, high.x);
    keep(group.y, 5u, row, high.y);
    keep(group.y, 6u, row, high.z);
    keep(group.y, 7u, row, high.w);
  }
}
