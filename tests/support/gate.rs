//! A TCP gate before a server on loopback: open, a trickle, or shut without a word. It counts its
//! visitors.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// How answers pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// As they come.
    Open,
    /// So many bytes a second.
    Trickle(usize),
    /// Not at all; connections are accepted and requests are passed on.
    Shut,
}

/// A running gate; dropping it cuts every connection.
pub struct Gate {
    port: u16,
    flow: watch::Sender<Flow>,
    visitors: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Gate {
    /// Stands before the server on loopback's port `to`, on a free port of its own.
    pub fn before(to: u16) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let flow = watch::Sender::new(Flow::Open);
        let visitors = Arc::new(AtomicUsize::new(0));
        let (watched, counted) = (flow.subscribe(), Arc::clone(&visitors));
        let task = super::tokio_runtime().spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut connections = JoinSet::new();
            while let Ok((visitor, _)) = listener.accept().await {
                let (flow, counted) = (watched.clone(), Arc::clone(&counted));
                connections.spawn(async move {
                    counted.fetch_add(1, Ordering::Relaxed);
                    pass(visitor, to, flow).await;
                    counted.fetch_sub(1, Ordering::Relaxed);
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Self { port, flow, visitors, task: task.abort_handle() }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on, for connections that are there as well.
    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }

    /// How many connections there are.
    pub fn visitors(&self) -> usize {
        self.visitors.load(Ordering::Relaxed)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until the visitor goes, or the server when the gate lets that be known.
async fn pass(visitor: TcpStream, to: u16, flow: watch::Receiver<Flow>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let ((mut from_visitor, to_visitor), (from_server, mut to_server)) =
        (visitor.into_split(), server.into_split());
    // Neither arm is resumed: the connection ends with either.
    tokio::select! {
        _ = tokio::io::copy(&mut from_visitor, &mut to_server) => {}
        _ = answers(from_server, to_visitor, flow) => {}
    }
}

async fn answers(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut flow: watch::Receiver<Flow>,
) -> std::io::Result<()> {
    const STEPS: usize = 10;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let now = *flow.borrow_and_update();
        let most = match now {
            Flow::Open => buffer.len(),
            Flow::Trickle(bytes) => (bytes / STEPS).clamp(1, buffer.len()),
            Flow::Shut => {
                if flow.changed().await.is_err() {
                    return Ok(());
                }
                continue;
            }
        };
        // Nothing is lost when the flow changes while an answer is waited for: it is looked at
        // again after it.
        let read = from.read(&mut buffer[..most]).await?;
        if read == 0 {
            return Ok(());
        }
        while *flow.borrow_and_update() == Flow::Shut {
            if flow.changed().await.is_err() {
                return Ok(());
            }
        }
        to.write_all(&buffer[..read]).await?;
        if now != Flow::Open {
            tokio::time::sleep(Duration::from_secs(1) / u32::try_from(STEPS).unwrap()).await;
        }
    }
}
