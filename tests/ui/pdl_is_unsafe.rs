use gatemix::{Cuda, Exec};

fn early(exec: Exec<Cuda>) -> Exec<Cuda> {
    exec.pdl()
}

fn main() {}
