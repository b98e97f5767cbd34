//! Helpers for watch channels: publishing without waking receivers when nothing has changed, and
//! waiting for any of several channels.

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

/// Waits until one of the receivers has a new value. It waits for ever when there are no receivers
/// or all senders are gone.
pub(crate) async fn any_changed<T>(receivers: &mut [watch::Receiver<T>]) {
    let waits: Vec<_> = receivers
        .iter_mut()
        .map(|receiver| {
            Box::pin(async move {
                if receiver.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        })
        .collect();
    first_of(waits).await;
}

/// Completes with the first of the futures, or never when there are none.
async fn first_of<F: Future<Output = ()> + Unpin>(mut futures: Vec<F>) {
    std::future::poll_fn(|context| {
        for future in &mut futures {
            if std::pin::Pin::new(future).poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
        }
        std::task::Poll::Pending
    })
    .await;
}

/// Waits for a change. It waits for ever when there is no channel.
///
/// # Errors
/// When the sender is gone.
pub(crate) async fn changed_if_there<T>(
    receiver: &mut Option<watch::Receiver<T>>,
) -> Result<(), watch::error::RecvError> {
    match receiver {
        Some(receiver) => receiver.changed().await,
        None => std::future::pending().await,
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
