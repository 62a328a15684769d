use gatemix::{GateWidth, StaticGateWidth};

const WIDTH: GateWidth = StaticGateWidth::<255>::WIDTH;

fn main() {
    println!("{WIDTH:?}");
}
