// K types of two bits: 16 bytes hold four chunks of 16 columns, two chunks apart, by rising bits. Unit k of 8 takes two
// of them: bits 0-3 or 4-7 of the bytes for the even or the odd chunks of a half of the 256 columns.
const SPLIT_HALVES = true;

fn unit_chunks(u: u32) -> vec2<u32> {
  let first = (u >> 1u) * 4u + (u & 1u);
  return vec2<u32>(first, first + 2u);
}

// Which 16 bytes of two bits, of 4, and how far its first chunk's bits are up in a byte.
fn pairs_word(k: u32) -> u32 { return (k >> 2u) * 2u + (k & 1u); }

fn pairs_shift(k: u32) -> vec4<u32> { return vec4<u32>((k & 2u) * 2u); }
