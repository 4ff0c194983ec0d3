// The halves of unit u are its own 32 columns in order: types whose quant block is one unit.
const SPLIT_HALVES = false;

fn unit_chunks(u: u32) -> vec2<u32> { return vec2<u32>(2u * u, 2u * u + 1u); }
