// Activations of matvec that need no further scale.
const NORMED = false;
fn squares_of(u: u32, token: u32) -> f32 { return 0.0; }
fn norm_scale(squares: f32) -> f32 { return 1.0; }
