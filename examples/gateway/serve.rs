//! Connections: limits, deadlines and a graceful end. TLS is ended by a proxy in front.

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet},
};

use super::Error;

/// Connections at a time; further ones wait in the listener's queue.
const MAX_CONNECTIONS: usize = 1024;
/// How long the headers of a request may take, and how long a connection may be idle.
const HEADERS: Duration = Duration::from_secs(10);
/// How long requests in progress may take once the gateway stops.
const STOP: Duration = Duration::from_secs(10);

/// Binds `address`; the error names the setting and says what may be wrong.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                ": another program listens there; stop it, or choose another port with --listen"
            }
            std::io::ErrorKind::PermissionDenied => {
                ": ports below 1024 need a privilege; choose another with --listen"
            }
            std::io::ErrorKind::AddrNotAvailable => {
                ": no interface of this machine has that address"
            }
            _ => "",
        };
        Error::setting(
            "listen",
            format!("cannot listen on {address}: {error}{hint}"),
        )
    })
}

/// A listener at work. It stops when it is dropped, too, but then nobody waits for it.
pub struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    pub fn start(listener: TcpListener, app: Router) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(accept(listener, app, stopped));
        Self { stop, task }
    }

    /// Takes no more connections, and waits for the requests in progress.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the listener broke off");
        }
    }
}

async fn accept(listener: TcpListener, app: Router, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            next = next => next,
            _ = stop.changed() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = serve(stream, app.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            Err(error) => {
                // Such as too many open files: it passes when connections end.
                tracing::error!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP, all).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            seconds = STOP.as_secs(),
            "requests were still in progress after the deadline; they are broken off"
        );
    }
}

async fn serve(stream: TcpStream, app: Router, mut stop: watch::Receiver<bool>) {
    // Answers are small and whole; waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    let mut connection =
        pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// Completes at the first SIGINT or SIGTERM; a second one ends the process at once.
pub fn stop_signal() -> Result<impl Future<Output = ()>, Error> {
    let failed = |e: std::io::Error| Error(format!("signals cannot be waited for: {e}"));
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(failed)?;
    #[cfg(unix)]
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
        .map_err(failed)?;
    Ok(async move {
        #[cfg(unix)]
        {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tokio::spawn(async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                std::process::exit(130);
            });
        }
        #[cfg(not(unix))]
        {
            let _ = tokio::signal::ctrl_c().await;
        }
    })
}

/// SIGHUPs, each of which asks for a reload. Where there are none, nothing ever does.
pub struct Hangups {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

/// Takes SIGHUP over from the system, which would end the process; not where it is not `wanted`.
pub fn hangups(wanted: bool) -> Result<Hangups, Error> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let signal = wanted.then(|| signal(SignalKind::hangup())).transpose();
        let signal = signal.map_err(|e| Error(format!("signals cannot be waited for: {e}")))?;
        Ok(Hangups { signal })
    }
    #[cfg(not(unix))]
    {
        let _ = wanted;
        Ok(Hangups {})
    }
}

impl Hangups {
    pub async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}
