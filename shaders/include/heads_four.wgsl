// Four query heads of a kv head a workgroup of attention_decode_subgroups: Each is what a lane holds of every head.
const HEADS_TOGETHER = 4u;
alias Each = vec4<f32>;
struct Octets { h0: Eight, h1: Eight, h2: Eight, h3: Eight } // a lane's eight dims of every head

fn octets_of(value: Eight) -> Octets { return Octets(value, value, value, value); }

// Heads past the last: the last.
fn projected_heads(base: u32, num_heads: u32, part: u32) -> Octets {
  let last = num_heads - 1u;
  return Octets(
    octet(base, part), octet(base + min(1u, last) * HEAD_DIM, part),
    octet(base + min(2u, last) * HEAD_DIM, part), octet(base + min(3u, last) * HEAD_DIM, part));
}

fn queries_of(x: Octets, part: u32, lane: u32, angles: Angles, scale: f32) -> Octets {
  return Octets(
    query_of(x.h0, part, lane, angles, scale), query_of(x.h1, part, lane, angles, scale),
    query_of(x.h2, part, lane, angles, scale), query_of(x.h3, part, lane, angles, scale));
}

fn products(q: Octets, k: Eight) -> Each {
  return Each(product(q.h0, k), product(q.h1, k), product(q.h2, k), product(q.h3, k));
}

fn add_values(s: Octets, shrink: Each, v0: Eight, v1: Eight, v2: Eight, v3: Eight, w: array<Each, 4>) -> Octets {
  return Octets(
    weighted(s.h0, shrink.x, v0, v1, v2, v3, vec4<f32>(w[0].x, w[1].x, w[2].x, w[3].x)),
    weighted(s.h1, shrink.y, v0, v1, v2, v3, vec4<f32>(w[0].y, w[1].y, w[2].y, w[3].y)),
    weighted(s.h2, shrink.z, v0, v1, v2, v3, vec4<f32>(w[0].z, w[1].z, w[2].z, w[3].z)),
    weighted(s.h3, shrink.w, v0, v1, v2, v3, vec4<f32>(w[0].w, w[1].w, w[2].w, w[3].w)));
}

fn keep_sums(s: Octets, factor: Each, joint: u32, subgroup: u32, part: u32) {
  keep_sum(0u, joint, subgroup, part, joined_octets(times(s.h0, factor.x)));
  keep_sum(1u, joint, subgroup, part, joined_octets(times(s.h1, factor.y)));
  keep_sum(2u, joint, subgroup, part, joined_octets(times(s.h2, factor.z)));
  keep_sum(3u, joint, subgroup, part, joined_octets(times(s.h3, factor.w)));
}

fn of_head(value: Each, head: u32) -> f32 { return value[head]; }
