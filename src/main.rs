//! The nodelet program; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    nodelet::cli::main(std::env::args_os(), nodelet::agent::run)
}
