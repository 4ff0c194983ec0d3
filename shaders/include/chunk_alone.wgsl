// What embedding does with a chunk of 16 values beside storing it: nothing.
fn chunk_stored(chunk: u32, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) {}
