// Attended values go out as f32: y [T, num_heads, HEAD_DIM]. Scores, and so `most`, are in units of log2.
@group(0) @binding(11) var<storage, read_write> y: array<Kv>;

#include "include/${sinks}.wgsl"

fn attended(sum: Kv, column: u32, w: u32, head_row: u32, split: u32, most: f32, total: f32) {
  y[(head_row + column) * WORDS + w] = sum / (total + sink_weight((head_row + column) % params.num_heads, most * 0.6931472));
}

fn finish_attended(head_row: u32, num_heads: u32, lane: u32) {}
