//! The support check speaks once per reason. One test, because the log and its memory belong to the process.
use std::sync::Mutex;

use gatemix::{GateFacts, Gating, gated_mla_support, gated_mla_support_all};
use log::{Level, LevelFilter, Log, Metadata, Record};

struct Recorder(Mutex<Vec<(Level, String)>>);

impl Log for Recorder {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }
    fn log(&self, record: &Record) {
        self.0.lock().unwrap().push((record.level(), record.args().to_string()));
    }
    fn flush(&self) {}
}

static RECORDER: Recorder = Recorder(Mutex::new(Vec::new()));

fn spoken() -> Vec<(Level, String)> {
    std::mem::take(&mut RECORDER.0.lock().unwrap())
}

#[test]
fn once_per_reason() {
    log::set_logger(&RECORDER).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let good = || GateFacts { enabled: true, ..GateFacts::cpu(256) };
    let cases = [
        (GateFacts { enabled: false, ..good() }, Level::Debug),
        (GateFacts { has_gate: false, ..good() }, Level::Debug),
        (GateFacts { gating: Gating::Headwise, ..good() }, Level::Warn),
        (GateFacts { gate_width: 300, ..good() }, Level::Warn),
        (GateFacts { weight_dtype: None, ..good() }, Level::Warn),
    ];
    for (facts, level) in &cases {
        let sentence = gated_mla_support(facts).unwrap_err().message;
        let first = spoken();
        assert_eq!(first.len(), 1, "{first:?}");
        assert_eq!(first[0].0, *level, "{sentence}");
        assert!(first[0].1.contains(&sentence), "{first:?} lacks {sentence:?}");
        gated_mla_support(facts).unwrap_err();
        assert_eq!(spoken(), []);
    }
    gated_mla_support(&GateFacts { gate_width: 100, ..good() }).unwrap_err(); // a known reason with another value
    assert_eq!(spoken(), []);
    gated_mla_support(&good()).unwrap();
    let supported = spoken();
    assert_eq!(supported.iter().map(|(level, _)| *level).collect::<Vec<_>>(), [Level::Info]);
    gated_mla_support(&good()).unwrap();
    gated_mla_support_all(&cases[2].0);
    assert_eq!(spoken(), []);
}
