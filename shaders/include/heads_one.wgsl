// One query head a workgroup of attention_decode_subgroups: Each is what a lane holds of every head.
const HEADS_TOGETHER = 1u;
alias Each = f32;
struct Octets { h0: Eight } // a lane's eight dims of every head

fn octets_of(value: Eight) -> Octets { return Octets(value); }

fn projected_heads(base: u32, num_heads: u32, part: u32) -> Octets { return Octets(octet(base, part)); }

fn queries_of(x: Octets, part: u32, lane: u32, angles: Angles, scale: f32) -> Octets {
  return Octets(query_of(x.h0, part, lane, angles, scale));
}

fn products(q: Octets, k: Eight) -> Each { return product(q.h0, k); }

fn add_values(s: Octets, shrink: Each, v0: Eight, v1: Eight, v2: Eight, v3: Eight, w: array<Each, 4>) -> Octets {
  return Octets(weighted(s.h0, shrink, v0, v1, v2, v3, vec4<f32>(w[0], w[1], w[2], w[3])));
}

fn keep_sums(s: Octets, factor: Each, joint: u32, subgroup: u32, part: u32) {
  keep_sum(0u, joint, subgroup, part, joined_octets(times(s.h0, factor)));
}

fn of_head(value: Each, head: u32) -> f32 { return value; }
