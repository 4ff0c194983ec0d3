// Sums and maxima within a subgroup of SUBGROUP lanes, every lane getting the result: joined_parts over the PARTS lanes
// of a group; joined_groups, most_joined_groups, joined_octets over the lanes of the same part in all groups.
fn joined_parts(value: Each) -> Each {
  var x = value;
  if (PARTS > 1u) { x += subgroupShuffleXor(x, 1u); }
  if (PARTS > 2u) { x += subgroupShuffleXor(x, 2u); }
  if (PARTS > 4u) { x += subgroupShuffleXor(x, 4u); }
  if (PARTS > 8u) { x += subgroupShuffleXor(x, 8u); }
  if (PARTS > 16u) { x += subgroupShuffleXor(x, 16u); }
  return x;
}

fn joined_groups(value: Each) -> Each {
  var x = value;
  if (PARTS <= 1u && SUBGROUP > 1u) { x += subgroupShuffleXor(x, 1u); }
  if (PARTS <= 2u && SUBGROUP > 2u) { x += subgroupShuffleXor(x, 2u); }
  if (PARTS <= 4u && SUBGROUP > 4u) { x += subgroupShuffleXor(x, 4u); }
  if (PARTS <= 8u && SUBGROUP > 8u) { x += subgroupShuffleXor(x, 8u); }
  if (PARTS <= 16u && SUBGROUP > 16u) { x += subgroupShuffleXor(x, 16u); }
  if (PARTS <= 32u && SUBGROUP > 32u) { x += subgroupShuffleXor(x, 32u); }
  return x;
}

fn most_joined_groups(value: Each) -> Each {
  var x = value;
  if (PARTS <= 1u && SUBGROUP > 1u) { x = max(x, subgroupShuffleXor(x, 1u)); }
  if (PARTS <= 2u && SUBGROUP > 2u) { x = max(x, subgroupShuffleXor(x, 2u)); }
  if (PARTS <= 4u && SUBGROUP > 4u) { x = max(x, subgroupShuffleXor(x, 4u)); }
  if (PARTS <= 8u && SUBGROUP > 8u) { x = max(x, subgroupShuffleXor(x, 8u)); }
  if (PARTS <= 16u && SUBGROUP > 16u) { x = max(x, subgroupShuffleXor(x, 16u)); }
  if (PARTS <= 32u && SUBGROUP > 32u) { x = max(x, subgroupShuffleXor(x, 32u)); }
  return x;
}

fn joined_quads(value: vec4<f32>) -> vec4<f32> {
  var x = value;
  if (PARTS <= 1u && SUBGROUP > 1u) { x += subgroupShuffleXor(x, 1u); }
  if (PARTS <= 2u && SUBGROUP > 2u) { x += subgroupShuffleXor(x, 2u); }
  if (PARTS <= 4u && SUBGROUP > 4u) { x += subgroupShuffleXor(x, 4u); }
  if (PARTS <= 8u && SUBGROUP > 8u) { x += subgroupShuffleXor(x, 8u); }
  if (PARTS <= 16u && SUBGROUP > 16u) { x += subgroupShuffleXor(x, 16u); }
  if (PARTS <= 32u && SUBGROUP > 32u) { x += subgroupShuffleXor(x, 32u); }
  return x;
}

fn joined_octets(value: Eight) -> Eight { return Eight(joined_quads(value.lo), joined_quads(value.hi)); }
