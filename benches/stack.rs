//! What the layers cost beside a bare handler, the signature check set apart.
//!
//! `cargo bench --bench stack`. The store is in memory, profiles and grants are held in process, and the signature
//! check is measured on the same requests, in turns. What a write is made of is told in the line above the last:
//! its record entry is signed too, which is most of it.

use std::{
    cell::RefCell, collections::VecDeque, convert::Infallible, hint::black_box, time::Duration,
};

use bytes::Bytes;
use criterion::Criterion;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_rctp::{
    layer::{
        authenticate::{LABEL, signature_policy},
        body::Body,
    },
    protocol::{
        decision::Decision,
        operation::Op,
        record::{Entry, FIRST_PREV_HASH, Seal, Subject, SubjectKind},
    },
    wire::{
        digest::sha256,
        signature::{Authority, Message, Presented},
    },
};
use tower_rctp_peers::in_turns;

#[path = "../tests/common/mod.rs"]
mod common;

use common::{
    FLOOR, LISTING, SELLER_TOKEN, Service as Stack, World, get, offer_body, post, with_token,
};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let bench = Bench::new(&runtime);
    let operations: [(&str, &dyn Fn()); 9] = [
        ("bare handler", &|| bench.bare()),
        ("none of ours, bare", &|| bench.elsewhere(&bench.plain)),
        ("none of ours, layered", &|| {
            bench.elsewhere(&bench.over_plain)
        }),
        ("verify a GET", &|| bench.verify(&bench.read)),
        ("get_listing, signed", &|| bench.read(&bench.read)),
        ("verify a GET with a grant", &|| {
            bench.verify(&bench.granted)
        }),
        ("list_offers, signed, with a grant", &|| {
            bench.read(&bench.granted)
        }),
        ("verify a POST", &|| bench.verify(&bench.offer)),
        ("create_offer, signed", &|| bench.write()),
    ];
    let mut criterion = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for (name, operation) in &operations[..8] {
        criterion.bench_function(name, |bencher| bencher.iter(operation));
    }
    criterion.bench_function(operations[8].0, |bencher| {
        bencher.iter_custom(|calls| {
            let requests = bench.offers(calls as usize);
            let start = std::time::Instant::now();
            for request in requests {
                bench.call(&bench.stack, request);
            }
            start.elapsed()
        });
    });
    criterion.final_summary();

    *bench.queue.borrow_mut() = bench.offers(2_500).into();
    let sealing: (&str, &dyn Fn()) = ("seal an entry", &|| bench.seal());
    let all: Vec<_> = operations.into_iter().chain([sealing]).collect();
    let medians = in_turns(&all);
    let of = |name: &str| {
        let index = all.iter().position(|(this, _)| *this == name);
        medians[index.expect("an operation of that name")]
    };
    let bare = of("bare handler");
    let read = of("get_listing, signed") - of("verify a GET") - bare;
    let granted = of("list_offers, signed, with a grant") - of("verify a GET with a grant") - bare;
    let write = of("create_offer, signed") - of("verify a POST") - bare;
    println!(
        "create_offer {:.1} µs = verify {:.1} + sign its record entry {:.1} + the rest of the stack {:.1} + handler {bare:.1}",
        of("create_offer, signed"),
        of("verify a POST"),
        of("seal an entry"),
        write - of("seal an entry"),
    );
    println!(
        "stack without verify: get_listing {read:.1} µs · list_offers {granted:.1} µs · create_offer {:.1} µs and {:.1} µs for \
         signing its record entry · none of ours {:.2} µs · create_offer/verify {:.2}",
        write - of("seal an entry"),
        of("seal an entry"),
        of("none of ours, layered") - of("none of ours, bare"),
        of("create_offer, signed") / of("verify a POST"),
    );
}

type Plain = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

struct Bench<'r> {
    runtime: &'r Runtime,
    world: World,
    stack: Stack,
    plain: Plain,
    over_plain: Plain,
    authority: Authority,
    read: Request<Bytes>,
    granted: Request<Bytes>,
    offer: Request<Bytes>,
    entry: Entry,
    queue: RefCell<VecDeque<Request<Bytes>>>,
}

impl<'r> Bench<'r> {
    fn new(runtime: &'r Runtime) -> Self {
        let world = runtime.block_on(World::new());
        let handler = service_fn(|_: Request<Body>| async {
            let body = Full::from(r#"{"listing_id":"lst_bicycle","state":"active"}"#);
            Ok::<_, Infallible>(Response::new(Body::new(body)))
        });
        let sign = |mut request, agent: &common::Agent| {
            agent.signer.sign(&mut request).expect("a signature");
            request
        };
        let read = sign(get(&format!("/listings/{LISTING}")), &world.buyer);
        let list = with_token(get("/offers?listing_id=lst_other&limit=1"), SELLER_TOKEN);
        runtime.block_on(world.publish("lst_other", common::SELLER, common::public_terms()));
        let offer = sign(post("/offers", &offer_body(FLOOR + 1)), &world.buyer);
        let caller = tower_rctp::protocol::caller::Caller::signed(
            &*world.buyer.profile,
            world.buyer.signer.key().kid().clone(),
        );
        let entry = Entry::new(
            Subject::new(SubjectKind::Negotiation, "neg_1"),
            world.clock.now(),
            Op::CreateOffer,
            Decision::Auto,
            &caller,
        );
        let bench = Self {
            runtime,
            stack: world.service.clone(),
            plain: BoxCloneSyncService::new(handler),
            over_plain: BoxCloneSyncService::new(world.rctp.layer().layer(handler)),
            authority: Authority::new("gateway.example", "https").expect("an authority"),
            granted: sign(list, &world.seller),
            read,
            offer,
            entry,
            queue: RefCell::default(),
            world,
        };
        for request in [&bench.read, &bench.granted, &bench.offer] {
            let status = bench.call(&bench.stack, request.clone());
            assert!(status < 300, "{status}");
        }
        bench
    }

    /// Signed offers, each with a key of its own.
    fn offers(&self, count: usize) -> Vec<Request<Bytes>> {
        (0..count)
            .map(|_| {
                let mut request = post("/offers", &offer_body(FLOOR + 1));
                self.world
                    .buyer
                    .signer
                    .sign(&mut request)
                    .expect("a signature");
                request
            })
            .collect()
    }

    fn call(&self, service: &Stack, request: Request<Bytes>) -> u16 {
        let request = request.map(Body::from);
        let response = self.runtime.block_on(service.clone().oneshot(request));
        response
            .unwrap_or_else(|never| match never {})
            .status()
            .as_u16()
    }

    fn read(&self, request: &Request<Bytes>) {
        black_box(self.call(&self.stack, request.clone()));
    }

    fn write(&self) {
        let request = self.queue.borrow_mut().pop_front();
        let status = self.call(&self.stack, request.unwrap_or_else(|| self.offer.clone()));
        debug_assert_eq!(status, 201);
        black_box(status);
    }

    fn bare(&self) {
        black_box(self.call(&self.plain, self.read.clone()));
    }

    fn elsewhere(&self, service: &Plain) {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static("https://gateway.example/health");
        let mut service = service.clone();
        let response = self
            .runtime
            .block_on(async { service.ready().await?.call(request).await });
        black_box(response.unwrap_or_else(|never| match never {}));
    }

    fn verify(&self, request: &Request<Bytes>) {
        let request = black_box(request);
        let body = sha256(request.body());
        let presented = Presented::read(request.headers(), LABEL).expect("a signature");
        let key = match request.headers().contains_key("authorization") {
            true => self.world.seller.signer.key().public_key(),
            false => self.world.buyer.signer.key().public_key(),
        };
        let uri = request.uri();
        let message = Message::request(
            request.method(),
            &self.authority,
            uri.path(),
            uri.query(),
            request.headers(),
        );
        let body = (!request.body().is_empty()).then_some(&body);
        let now = self.world.clock.now().secs();
        let covered = presented.verify(&message, key, &POLICY, body, now);
        black_box(covered.expect("a good signature"));
    }

    fn seal(&self) {
        let sealed = self.world.gateway_key.seal(&self.entry, 1, FIRST_PREV_HASH);
        black_box(sealed.expect("a sealed entry"));
    }
}

static POLICY: std::sync::LazyLock<tower_rctp::wire::signature::Policy> =
    std::sync::LazyLock::new(signature_policy);
