//! Which processor the machines have: x86-64 as the host, or that of a Raspberry Pi 4 (aarch64),
//! with an agent that was built for it.

use crate::{machine, support};
use std::{path::PathBuf, sync::LazyLock};

/// Names the agent for aarch64. If it is set, the machines have such a processor.
const AARCH64_AGENT: &str = "NODELET_AARCH64";

/// What depends on the processor of a machine.
#[derive(Debug)]
pub struct Processor {
    /// Debian's name of the architecture.
    pub architecture: &'static str,
    /// Emulates it.
    pub qemu: Tool,
    /// `-machine`
    pub board: &'static str,
    /// `-cpu`
    pub cpu: &'static str,
    /// The kernel's name of the serial line.
    pub serial: &'static str,
    /// Where the image is made, below the target directory.
    pub image_dir: &'static str,
    /// Removes from a program what only a debugger reads.
    pub strip: Tool,
}

/// A program of the host.
#[derive(Debug)]
pub struct Tool {
    pub command: &'static str,
    /// The package of Debian that has it.
    pub package: &'static str,
}

/// A usual PC. The processor has everything that QEMU can emulate, without two features that make
/// emulation slow. With `erms` the guest copies memory byte by byte instead of word by word, and
/// with `la57` it has a fifth level of page tables.
const X86_64: Processor = Processor {
    architecture: "amd64",
    qemu: Tool { command: "qemu-system-x86_64", package: "qemu-system-x86" },
    board: "q35",
    cpu: "max,erms=off,la57=off",
    serial: "ttyS0",
    image_dir: "machine",
    strip: Tool { command: "strip", package: "binutils" },
};

/// QEMU's own board with the processor of a Raspberry Pi 4.
const AARCH64: Processor = Processor {
    architecture: "arm64",
    qemu: Tool { command: "qemu-system-aarch64", package: "qemu-system-arm" },
    board: "virt",
    cpu: "cortex-a72",
    serial: "ttyAMA0",
    image_dir: "machine-aarch64",
    strip: Tool { command: "aarch64-linux-gnu-strip", package: "binutils-aarch64-linux-gnu" },
};

/// The agent for aarch64, where the tests are about that.
static FOREIGN_AGENT: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| std::env::var_os(AARCH64_AGENT).map(PathBuf::from));

/// The processor of every machine.
pub fn processor() -> &'static Processor {
    match *FOREIGN_AGENT {
        Some(_) => &AARCH64,
        None => &X86_64,
    }
}

/// The agent that runs in the machines.
pub fn agent() -> PathBuf {
    FOREIGN_AGENT.clone().unwrap_or_else(|| support::agent::binary().into())
}

/// The container images for the machines.
pub fn images() -> PathBuf {
    match *FOREIGN_AGENT {
        Some(_) => support::images::archive_of_foreign([
            processor().architecture.as_ref(),
            "aarch64-linux-gnu-gcc".as_ref(),
            machine::image().join("busybox").as_ref(),
        ]),
        None => support::images::archive(),
    }
}
