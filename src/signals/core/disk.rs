//! Answers of file systems, and which of them are the same.

use super::NoReading;
use crate::model::DiskLayout;
use std::path::Path;

/// What a file system says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::signals) struct FileSystemUse {
    /// Which: the device number of a path on it.
    pub(in crate::signals) device: u64,
    /// Bytes of a block.
    pub(in crate::signals) block: u64,
    /// Blocks altogether.
    pub(in crate::signals) blocks: u64,
    /// Blocks that are not taken.
    pub(in crate::signals) blocks_free: u64,
    /// Blocks that anybody may still take: what is set apart for root is not among them.
    pub(in crate::signals) blocks_available: u64,
    /// Inodes altogether.
    pub(in crate::signals) inodes: u64,
    /// Inodes that are left.
    pub(in crate::signals) inodes_available: u64,
}

impl FileSystemUse {
    /// Bytes: what is left, and what there is.
    ///
    /// # Errors
    /// When it makes no sense.
    pub(in crate::signals) fn bytes(&self, path: &Path) -> Result<(u64, u64), NoReading> {
        let absurd =
            |what: &str| NoReading::Absurd { path: path.to_owned(), what: what.to_owned() };
        if self.block == 0 || self.blocks == 0 {
            return Err(absurd("its file system has no blocks"));
        }
        if self.blocks_available > self.blocks {
            return Err(absurd("its file system has more free blocks than blocks"));
        }
        let bytes = |blocks: u64| blocks.checked_mul(self.block);
        let both = bytes(self.blocks_available).zip(bytes(self.blocks));
        both.ok_or_else(|| absurd("its file system is larger than a number can be"))
    }

    /// Bytes that are taken, as `df` shows them.
    pub(in crate::signals) fn taken(&self) -> u64 {
        self.blocks.saturating_sub(self.blocks_free).saturating_mul(self.block)
    }

    /// Inodes: what is left, and what there is. There are none where the file system has no table
    /// of inodes, like btrfs: nothing that could run out.
    ///
    /// # Errors
    /// When it makes no sense.
    pub(in crate::signals) fn inodes(&self, path: &Path) -> Result<(u64, u64), NoReading> {
        if self.inodes_available > self.inodes {
            let what = "its file system has more free inodes than inodes".to_owned();
            return Err(NoReading::Absurd { path: path.to_owned(), what });
        }
        Ok((self.inodes_available, self.inodes))
    }
}

/// The layout, from the device numbers of the root directory, the images and the writable layers.
#[must_use]
pub(in crate::signals) fn layout(root: u64, images: u64, layers: u64) -> DiskLayout {
    match (images == root, layers == root, layers == images) {
        (true, true, _) => DiskLayout::Single,
        (false, false, true) => DiskLayout::DedicatedImages,
        (false, true, _) => DiskLayout::Split,
        (images_on_root, false, _) => DiskLayout::LayersElsewhere { images_on_root },
    }
}

/// Where the whole file system of a device (`8:1`) is mounted, from a `/proc/PID/mountinfo`.
#[must_use]
pub(in crate::signals) fn tops<'a>(mountinfo: &'a str, device: &str) -> Vec<&'a str> {
    let mounts = mountinfo.lines().map(|line| line.split(' ').skip(2));
    let whole = mounts.filter_map(|mut fields| {
        let (found, root, point) = (fields.next()?, fields.next()?, fields.next()?);
        (found == device && root == "/").then_some(point)
    });
    whole.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_of_a_file_system() {
        let mounts = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /data rw - ext4 b rw\n3 1 8:2 /x /x rw - ext4 b rw\n";
        assert_eq!(tops(mounts, "8:2"), ["/data"]);
        assert_eq!(tops(mounts, "8:1"), ["/"]);
        assert!(tops(mounts, "0:33").is_empty());
    }

    const GOOD: FileSystemUse = FileSystemUse {
        device: 1,
        block: 4096,
        blocks: 1000,
        blocks_free: 300,
        blocks_available: 250,
        inodes: 500,
        inodes_available: 499,
    };

    #[test]
    fn a_file_system_is_read() {
        let path = Path::new("/var/lib");
        assert_eq!(GOOD.bytes(path), Ok((250 * 4096, 1000 * 4096)));
        assert_eq!(GOOD.inodes(path), Ok((499, 500)));
        let full = FileSystemUse { blocks_available: 0, inodes_available: 0, ..GOOD };
        assert_eq!(full.bytes(path), Ok((0, 1000 * 4096)));
        assert_eq!(full.inodes(path), Ok((0, 500)));
    }

    #[test]
    fn an_absurd_answer_is_no_reading() {
        let path = Path::new("/p");
        for (absurd, told) in [
            (FileSystemUse { blocks: 0, blocks_available: 0, ..GOOD }, "has no blocks"),
            (FileSystemUse { block: 0, ..GOOD }, "has no blocks"),
            (FileSystemUse { blocks_available: u64::MAX, ..GOOD }, "more free blocks than blocks"),
            (FileSystemUse { blocks: u64::MAX, ..GOOD }, "larger than a number can be"),
        ] {
            let error = absurd.bytes(path).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
        let absurd = FileSystemUse { inodes_available: 501, ..GOOD };
        assert!(absurd.inodes(path).unwrap_err().to_string().contains("more free inodes"));
        let btrfs = FileSystemUse { inodes: 0, inodes_available: 0, ..GOOD };
        assert_eq!(btrfs.inodes(path), Ok((0, 0)));
    }

    #[test]
    fn the_devices_tell_the_layout() {
        for (images, layers, expected) in [
            (1, 1, DiskLayout::Single),
            (2, 2, DiskLayout::DedicatedImages),
            (2, 1, DiskLayout::Split),
            (1, 2, DiskLayout::LayersElsewhere { images_on_root: true }),
            (2, 3, DiskLayout::LayersElsewhere { images_on_root: false }),
        ] {
            assert_eq!(layout(1, images, layers), expected, "{images} {layers}");
        }
    }
}
