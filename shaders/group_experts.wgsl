// group_experts: puts the pairs of a token and one of its experts in groups of up to GROUP that have one expert
//
// ids     [pairs] u32: each pair's expert     count [1] u32: live tokens, of `used` pairs each
// groups  [max_groups, 1 + GROUP] u32, out: an expert (NONE: no such group), then pairs (NONE: no more)
// grid    (1, 1, 1); a lane counts the pairs of experts lane, lane + WG, .. and then writes their groups
// GROUP, WG (at most 256), EXPERTS: const     max_groups >= pairs / GROUP + EXPERTS
struct Params { used: u32, max_groups: u32 }
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read> count: array<u32>;
@group(0) @binding(2) var<storage, read_write> groups: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;
const NONE = 0xffffffffu;
const WIDTH = 1u + GROUP;
var<workgroup> members: array<u32, EXPERTS>;
var<workgroup> first_group: array<u32, EXPERTS + 1u>;

@compute @workgroup_size(WG)
fn group_experts(@builtin(local_invocation_index) lane: u32) {
  let pairs = count[0] * params.used;
  for (var expert = lane; expert < EXPERTS; expert += WG) {
    var found = 0u;
    for (var pair = 0u; pair < pairs; pair++) { if (ids[pair] == expert) { found++; } }
    members[expert] = found;
  }
  workgroupBarrier();
  if (lane == 0u) {
    var at = 0u;
    for (var expert = 0u; expert < EXPERTS; expert++) {
      first_group[expert] = at;
      at += (members[expert] + GROUP - 1u) / GROUP;
    }
    first_group[EXPERTS] = at;
  }
  workgroupBarrier();
  let used = first_group[EXPERTS];
  for (var g = lane; g < params.max_groups; g += WG) {
    if (g >= used) { groups[g * WIDTH] = NONE; }
  }
  // An expert's pairs in order, so that the same input gives the same sums.
  for (var expert = lane; expert < EXPERTS; expert += WG) {
    let at = first_group[expert] * WIDTH;
    var found = 0u;
    for (var pair = 0u; pair < pairs && found < members[expert]; pair++) {
      if (ids[pair] == expert) {
        let g = at + found / GROUP * WIDTH;
        if (found % GROUP == 0u) { groups[g] = expert; }
        groups[g + 1u + found % GROUP] = pair;
        found++;
      }
    }
    for (; found % GROUP != 0u; found++) { groups[at + found / GROUP * WIDTH + 1u + found % GROUP] = NONE; }
  }
}
