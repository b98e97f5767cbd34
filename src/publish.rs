//! Publishing through a watch channel without waking receivers when nothing has changed.

use tokio::sync::watch;

/// What [`watch::Sender`] lacks.
pub trait PublishIfChanged<T> {
    /// Publishes `value` unless it equals the published one. Returns true when it was published.
    fn publish_if_changed(&self, value: T) -> bool;
}

impl<T: PartialEq> PublishIfChanged<T> for watch::Sender<T> {
    fn publish_if_changed(&self, value: T) -> bool {
        self.send_if_modified(|published| {
            let changed = *published != value;
            if changed {
                *published = value;
            }
            changed
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn only_another_value_wakes_receivers() {
        let (sender, mut receiver) = watch::channel(1);
        assert!(!sender.publish_if_changed(1));
        assert!(!receiver.has_changed().unwrap());
        assert!(sender.publish_if_changed(2));
        assert!(receiver.has_changed().unwrap());
        assert_eq!(*receiver.borrow_and_update(), 2);
    }
}
