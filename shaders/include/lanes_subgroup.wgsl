// lane_total: the sum over the LANES lanes that share weight rows. Here LANES is the device's fixed subgroup size.
fn lane_total(value: f32, thread: u32) -> f32 { return subgroupAdd(value); }
