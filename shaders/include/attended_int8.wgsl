// Attended values go out as int8 activations: out_q, out_scales as in quantize_q8. Heads are whole runs of 32.
@group(0) @binding(11) var<storage, read_write> out_q: array<u32>;
@group(0) @binding(12) var<storage, read_write> out_scales: array<vec2<f32>>;
const QUADS = HEADS_TOGETHER * WORDS;
const CHUNKS_EACH = QUADS / 4u;
#include "include/quads.wgsl"
#include "include/${quantize}.wgsl"
#include "include/${sinks}.wgsl"

fn attended(sum: Kv, column: u32, w: u32, head_row: u32, split: u32, most: f32, total: f32) {
  quads[column * WORDS + w] = sum / (total + sink_weight((head_row + column) % params.num_heads, most * 0.6931472));
}

fn finish_attended(head_row: u32, num_heads: u32, lane: u32) {
  // A lane has filled the quads that it rounds.
  quantize_tile(Places(head_row * (WORDS / 4u), 0u, num_heads * (WORDS / 4u)), lane);
}
