use gatemix::{GateWidth, StaticGateWidth};

const WIDTH: GateWidth = StaticGateWidth::<128>::WIDTH;

fn main() {
    println!("{WIDTH:?}");
}
