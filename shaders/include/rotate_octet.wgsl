// rotated(x, ...): a lane's eight dims of a head after rotation; the PARTS lanes of a head call it together.
// Needs Eight, cos_table and sin_table as vec4, params.rope_dim (a multiple of 16), HALVES, SUBGROUP.
struct Angles { cos: Eight, sin: Eight } // rotated = x * cos + its partner * sin, the sign being in sin

fn angles_of(part: u32, position: u32) -> Angles {
  let middle = params.rope_dim / 16u; // octets of half a rotated head
  let row = position * (params.rope_dim / 8u); // in vec4s
  if (part >= 2u * middle) {
    let zero = vec4<f32>();
    let one = vec4<f32>(1.0);
    return Angles(Eight(one, one), Eight(zero, zero));
  }
  if (HALVES) {
    let at = row + 2u * select(part - middle, part, part < middle);
    let sign = select(1.0, -1.0, part < middle);
    return Angles(Eight(cos_table[at], cos_table[at + 1u]), Eight(sin_table[at] * sign, sin_table[at + 1u] * sign));
  }
  let c = cos_table[row + part];
  let s = sin_table[row + part];
  let signs = vec4<f32>(-1.0, 1.0, -1.0, 1.0);
  return Angles(Eight(c.xxyy, c.zzww), Eight(s.xxyy * signs, s.zzww * signs));
}

fn rotated(x: Eight, part: u32, lane: u32, angles: Angles) -> Eight {
  var partner = Eight(x.lo.yxwz, x.hi.yxwz);
  if (HALVES) {
    let middle = params.rope_dim / 16u;
    let other = select(part - middle, part + middle, part < middle);
    let source = lane % SUBGROUP - part + select(part, other, part < 2u * middle);
    partner = Eight(subgroupShuffle(x.lo, source), subgroupShuffle(x.hi, source));
  }
  return Eight(x.lo * angles.cos.lo + partner.lo * angles.sin.lo, x.hi * angles.cos.hi + partner.hi * angles.sin.hi);
}
