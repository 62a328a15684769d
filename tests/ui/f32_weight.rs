use gatemix::{GateWeight, GateWidth};

fn main() {
    let width = GateWidth::new(256).unwrap();
    GateWeight::new(&[0.0_f32; 256], width, 1).unwrap();
}
