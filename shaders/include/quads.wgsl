// What quantize_tile rounds, in memory of its own.
var<workgroup> quads: array<vec4<f32>, QUADS>;

fn quad(i: u32) -> vec4<f32> { return quads[i]; }
