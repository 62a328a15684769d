//! What only a GPU can show: graphs, streams, errors, and results that take its memory or its speed.
#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "cuda")]
mod agreement;
#[cfg(feature = "cuda")]
mod batches;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod errors;
#[cfg(feature = "cuda")]
mod fence;
#[cfg(feature = "cuda")]
mod gate;
#[cfg(feature = "cuda")]
mod gated_mla;
#[cfg(feature = "cuda")]
mod gated_mla_calls;
#[cfg(feature = "cuda")]
mod graphs;
#[cfg(feature = "cuda")]
mod streams;

use std::process::ExitCode;

use common::on_cuda;
#[cfg(feature = "cuda")]
use common::tests;

/// Without feature `cuda` only the names are left.
#[cfg(not(feature = "cuda"))]
macro_rules! tests {
    ($($test:path),+ $(,)?) => { &[$((stringify!($test), (|| panic!("no CUDA in this build")) as fn())),+] };
}

fn main() -> ExitCode {
    on_cuda(tests![
        agreement::mhc_post_collapse_rms_norm,
        agreement::hc_collapse,
        agreement::hc_head,
        agreement::mhc_pre_mix,
        agreement::rms_norm,
        agreement::gated_mla,
        agreement::rows_of_any_number_of_chunks,
        batches::a_token_has_the_same_bits_in_any_batch,
        batches::a_spoilt_token_stays_alone,
        batches::ten_thousand_repeats,
        batches::a_million_tokens,
        batches::beyond_32_bits_in_place,
        batches::beyond_32_bits_hc_collapse,
        batches::beyond_32_bits_hc_head,
        batches::beyond_32_bits_rms_norm,
        batches::beyond_32_bits_gated_mla,
        errors::a_pending_error_of_someone_else,
        errors::a_launch_that_cuda_refuses,
        errors::devices_that_do_not_exist,
        errors::bad_arguments_are_refused_as_on_the_cpu,
        gated_mla::every_element_of_a_grid,
        gated_mla::samples_of_a_grid_against_float64,
        gated_mla::batch_invariant_rows,
        gated_mla::batch_invariant_rows_beside_spoilt_ones,
        gated_mla_calls::operands_anywhere,
        gated_mla_calls::in_place,
        gated_mla_calls::a_hundred_repeats,
        gated_mla_calls::capture_and_replay,
        gated_mla_calls::capture_is_the_first_call_of_a_process,
        gated_mla_calls::two_streams_at_once,
        gated_mla_calls::a_second_device,
        graphs::capture_and_replay,
        graphs::capture_is_the_first_call_of_a_process,
        graphs::one_kernel_a_call_and_none_without_tokens,
        streams::two_streams_at_once,
        streams::shapes_of_many_threads,
        streams::a_slow_producer_holds_up_the_stream_but_not_the_caller,
        streams::a_fresh_thread,
        streams::the_current_device_stays,
        gated_mla_calls::at_the_end_of_device_memory,
    ])
}
