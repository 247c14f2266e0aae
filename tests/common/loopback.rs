//! Real HTTP on loopback, for what only shows on a socket.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;

/// Serves a router on a free port of loopback until the test ends.
pub async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// A port of loopback on which nobody listens.
pub async fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs a test of this binary in a process whose environment names a proxy, since a test must not change its own; the
/// variable `mark` tells it so. The test must pass, and nobody may have asked the proxy.
pub async fn passes_beside_a_proxy(test: &'static str, mark: &str) {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", test])
        .env(mark, "1")
        .env_remove("NO_PROXY")
        .env_remove("no_proxy");
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        child.env(name, &url);
    }
    let child = tokio::task::spawn_blocking(move || child.output().unwrap())
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}"
    );
    let nobody = proxy.accept().map(drop).map_err(|e| e.kind());
    assert_eq!(nobody, Err(std::io::ErrorKind::WouldBlock));
}
