//! What the files of one directory may take together.

use super::{EntryLook, ParsedFile};
use crate::manifest::{MAX_DOCUMENTS, MAX_MEMORY_BYTES, MAX_TEXT_BYTES, memory_bytes};

/// What is left for the files that come later, in the order of their names.
///
/// The first file that has no room closes the budget, so that a directory that holds too much is
/// not read and decoded again at each look.
#[derive(Debug)]
pub(in crate::source) struct Budget {
    text_bytes: usize,
    documents: usize,
    memory_bytes: usize,
    is_closed: bool,
}

impl Budget {
    /// The whole budget of a directory.
    pub(in crate::source) fn new() -> Self {
        Self {
            text_bytes: MAX_TEXT_BYTES,
            documents: MAX_DOCUMENTS,
            memory_bytes: MAX_MEMORY_BYTES,
            is_closed: false,
        }
    }

    /// Takes the text of a file; whether there was room for it. A file that is too large by itself
    /// is not read either, and takes nothing.
    pub(in crate::source) fn take_text(&mut self, bytes: u64) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > MAX_TEXT_BYTES {
            return true;
        }
        let rest = self.text_bytes.checked_sub(bytes).filter(|_| !self.is_closed);
        self.is_closed |= rest.is_none();
        self.text_bytes = rest.unwrap_or(0);
        rest.is_some()
    }

    /// Takes what a file says; whether there was room for it.
    pub(in crate::source) fn take_look(&mut self, look: &EntryLook) -> bool {
        let EntryLook::Read(reading) = look else { return true };
        let documents = reading.documents.len() + reading.objects.len();
        let documents = self.documents.checked_sub(documents);
        let memory = self.memory_bytes.checked_sub(reading.memory_bytes());
        let Some((documents, memory)) = documents.zip(memory).filter(|_| !self.is_closed) else {
            self.is_closed = true;
            return false;
        };
        (self.documents, self.memory_bytes) = (documents, memory);
        true
    }

    /// Why a file has no room.
    pub(in crate::source) fn exhausted() -> String {
        format!(
            "not read: with the files before it, the directory has more than {} MiB of manifests or \
             {MAX_DOCUMENTS} documents, or takes more than {} MiB of memory: remove some",
            MAX_TEXT_BYTES >> 20,
            MAX_MEMORY_BYTES >> 20
        )
    }
}

impl ParsedFile {
    fn memory_bytes(&self) -> usize {
        let bytes = self.documents.iter().map(|document| {
            let result = document.result.as_ref().map(|desired| &*desired.pod);
            memory_bytes(&document.manifest, result.map_err(Vec::as_slice))
        });
        let objects = self.objects.iter().map(|document| match &document.result {
            Ok(object) => object.memory_bytes(),
            Err(problems) => memory_bytes("", Err(problems)),
        });
        bytes.chain(objects).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn first_file_without_room_closes_the_budget() {
        let mut budget = Budget::new();
        assert!(budget.take_text(3 << 20));
        assert!(budget.take_text(u64::MAX), "refused for its own size, elsewhere");
        assert!(budget.take_text(1 << 20));
        assert!(!budget.take_text(1));
        assert!(!budget.take_text(0));
        assert!(!budget.take_look(&EntryLook::Read(Arc::default())));
    }

    #[test]
    fn looks_that_hold_nothing_take_nothing() {
        let mut budget = Budget::new();
        for _ in 0..=MAX_DOCUMENTS {
            assert!(budget.take_look(&EntryLook::Settling));
            assert!(budget.take_look(&EntryLook::Read(Arc::default())));
        }
    }
}
