// query_factor: what a query grows by at its position (Mistral 3).     TEMPERATURE, TEMPERATURE_LENGTH  const
fn query_factor(position: u32) -> f32 {
  return 1.0 + TEMPERATURE * log(f32(1u + position / TEMPERATURE_LENGTH));
}
