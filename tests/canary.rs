//! INV-1, V11: the floor, proposed by the agent or confirmed by the seller, is nowhere that anybody but its seller can
//! look: the whole loop of the hosted pages, with everything that they, the stack, the record and the log say on the way.
//! (The operations alone, with stores that fail in every way, are in `binding_06_http`.)
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/market.rs"]
mod market;

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use common::{Agent, Answer, CURRENCY, SELLER_TOKEN, deal_terms, get, with_token};
use hosted::{Hosted, Person, browser_get, browser_post, confirmed, new_listing, offer_on};
use http::Request;
use market::{Backing, Call, Logs, fits, fresh_key, send_to, signed};
use serde_json::{Value, json};
use tower::{ServiceExt, service_fn};
use tower_rctp::{
    layer::{arrive::Answered, body::Body, decision::Decided},
    protocol::{decision::Decision, record::Subject, record::SubjectKind, refusal::Refusal},
    store::{ClaimStep, Kind, Unit},
};

/// What the seller confirms, and what the agent proposes. Neither number comes about by chance.
const CONFIRMED: u64 = 7_318_254_906;
const PROPOSED: u64 = 8_429_365_017;

/// Everything that was said, and to whom.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashSet<String>>>);

impl Seen {
    fn add(&self, what: &str, text: impl std::fmt::Display) {
        self.0.lock().unwrap().insert(format!("{what}: {text}"));
    }

    fn answer(&self, what: &str, answer: &Answer) {
        self.add(what, answer.status);
        self.add(what, format!("{:?}", answer.headers));
        self.add(what, String::from_utf8_lossy(&answer.bytes));
        let extensions = &answer.extensions;
        self.add(what, format!("{extensions:?}"));
        self.add(what, format!("{:?}", extensions.get::<Answered>()));
        self.add(what, format!("{:?}", extensions.get::<Refusal>()));
        self.add(what, format!("{:?}", extensions.get::<Decision>()));
    }

    /// What a handler inside the stack can print, of a parked action that goes on too.
    fn request(&self, request: &Request<Body>) {
        let extensions = request.extensions();
        self.add("a handler", format!("{request:?} {extensions:?}"));
        if let Some(decided) = extensions.get::<Decided>() {
            let facts = decided.facts();
            self.add("a handler", format!("{decided:#?} {:#?}", facts.requested));
            self.add("a handler", format!("{:#?}", facts.listing));
            self.add("a handler", format!("{:#?}", facts.approval));
            self.add("a handler", format!("{:#?} {:?}", facts.draft, facts.draft));
        }
    }

    fn tells(&self, number: u64) -> Vec<String> {
        // Digits, however they are grouped, in bytes as `Debug` writes arrays of them, and in hex.
        let digits = number.to_string();
        let bytes = format!("{:?}", digits.as_bytes());
        let bytes = bytes.trim_matches(['[', ']']).replace(", ", "");
        let forms = [digits, format!("{number:x}"), bytes];
        let seen = self.0.lock().unwrap();
        let tells = seen.iter().filter(|text| {
            let close: String = text
                .chars()
                .filter(|c| !matches!(c, '_' | '\'' | ',' | '.' | ' ' | '\n' | '\u{a0}'))
                .collect();
            forms.iter().any(|form| close.contains(form.as_str()))
        });
        tells.cloned().collect()
    }
}

/// The marketplace, what is seen of it, and everything that there is to ask for.
struct Scene {
    site: Hosted,
    seen: Seen,
    anna: Person,
    berta: Person,
    approvals: Vec<String>,
    listings: Vec<String>,
    offers: Vec<String>,
    deals: Vec<String>,
    statuses: HashSet<u16>,
    visits: AtomicUsize,
}

impl Scene {
    async fn open() -> Self {
        let mut site = Hosted::open(Backing::memory().await).await;
        site.store.remember();
        let seen = Seen::default();
        let (market, eyes) = (site.rctp.market(), seen.clone());
        let inside = service_fn(move |request: Request<axum::body::Body>| {
            let request = request.map(Body::new);
            eyes.request(&request);
            let market = market;
            async move {
                let response = market.oneshot(request).await?;
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let app = axum::Router::new().fallback_service(inside);
        site.market.world.service = hosted::door_of(&site.rctp, app);
        let anna = site.seller_person().await;
        let berta = site.person("sub_berta", false).await;
        Self {
            site,
            seen,
            anna,
            berta,
            approvals: vec!["apr_unknown".into()],
            listings: vec!["lst_unknown".into()],
            offers: vec!["off_unknown".into()],
            deals: vec!["deal_unknown".into()],
            statuses: HashSet::new(),
            visits: AtomicUsize::new(0),
        }
    }

    async fn send(&mut self, what: &str, request: Request<Bytes>) -> Answer {
        let what = format!("{what}, {} {}", request.method(), request.uri().path());
        let answer = send_to(&self.site.service, request).await;
        self.statuses.insert(answer.status);
        self.seen.answer(&what, &answer);
        answer
    }

    /// An agent of the seller.
    async fn seller(&mut self, path: &str, body: &Value) -> Answer {
        let seller = &self.site.seller;
        let request = signed(seller, Some(SELLER_TOKEN), path, body, &fresh_key());
        self.send("the seller's agent", request).await
    }

    async fn buyer(&mut self, path: &str, body: &Value) -> Answer {
        let request = signed(&self.site.buyer, None, path, body, &fresh_key());
        self.send("a buyer's agent", request).await
    }

    /// The seller at their browser.
    async fn page(&mut self, path: &str, body: &Value) -> Answer {
        let request = browser_post(path, Some(&self.anna), body);
        self.send("the seller", request).await
    }

    async fn ask(&mut self, path: &str, body: &Value) -> String {
        let asked = self.seller(path, body).await;
        assert_eq!(asked.status, 202, "{path}: {:?}", asked.body);
        let request = &asked.body["approval_request"];
        let id = request["approval_id"].as_str().unwrap().to_owned();
        self.approvals.push(id.clone());
        id
    }

    /// The seller's browser sends these terms; the page's options for the passkey.
    async fn fill_in(&mut self, id: &str) -> Value {
        // First in every wrong way.
        let path = format!("/approve/{id}/terms");
        let price = |currency: &str| json!({"amount": CONFIRMED, "currency": currency});
        let wrong = [
            ("floor", price("USD")),
            ("floor", json!(CONFIRMED)),
            ("floor", json!(CONFIRMED.to_string())),
            ("floor", json!({ "amount": CONFIRMED })),
            (
                "floor",
                json!({"amount": CONFIRMED.to_string(), "currency": "EUR"}),
            ),
            (
                "floor",
                json!({"amount": CONFIRMED, "currency": "EUR", "x": 1}),
            ),
            (
                "floor",
                json!({"amount": CONFIRMED * 10, "currency": "EUR"}),
            ),
            ("floor", json!([CONFIRMED])),
            ("deliver_within_days", json!(CONFIRMED)),
            ("return_policy", price("EUR")),
            ("available_until", json!(CONFIRMED.to_string())),
        ];
        for (name, value) in wrong {
            let mut terms = confirmed(CONFIRMED);
            terms[name] = value;
            let refused = self.page(&path, &json!({ "terms": terms })).await;
            assert_eq!(refused.status, 422, "{name}: {:?}", refused.body);
        }
        let mut more = confirmed(CONFIRMED);
        more[CONFIRMED.to_string()] = price("EUR");
        let refused = self.page(&path, &json!({ "terms": more })).await;
        assert_eq!(refused.status, 422, "{:?}", refused.body);
        for text in [
            format!("{{\"terms\":{{\"floor\":{CONFIRMED}"),
            format!("{{\"terms\":{{\"floor\":{CONFIRMED},\"floor\":{CONFIRMED}}}}}"),
            format!("{{\"{CONFIRMED}\":{CONFIRMED}}}"),
            format!("{CONFIRMED}"),
        ] {
            let mut request = browser_post(&path, Some(&self.anna), &json!({}));
            *request.body_mut() = text.into();
            let refused = self.send("the seller", request).await;
            assert_eq!(refused.status, 400, "{:?}", refused.body);
        }
        let good = json!({"terms": confirmed(CONFIRMED)});
        let others = browser_post(&path, Some(&self.berta), &good);
        assert_eq!(self.send("another seller", others).await.status, 404);
        let nobody = browser_post(&path, None, &good);
        assert_eq!(self.send("nobody", nobody).await.status, 401);
        for call in Call::ALL {
            self.site.store.take_down(call);
            self.page(&path, &good).await;
            self.site.store.mend();
        }
        self.site.store.lose_races(usize::MAX);
        assert_eq!(self.page(&path, &good).await.status, 503);
        self.site.store.lose_races(0);
        let filled = self.page(&path, &good).await;
        assert_eq!(filled.status, 200, "{:?}", filled.body);
        filled.body
    }

    async fn approve(&mut self, id: &str) -> Answer {
        let options = self
            .page(&format!("/approve/{id}/options"), &json!({}))
            .await;
        let mut body = json!({"decision": "approve"});
        let kept = self.site.kept(id).await;
        if let Some(draft) = kept.get("draft") {
            body["terms_commitment"] = draft["commitment"].clone();
        }
        let path = format!("/approvals/{id}/response");
        // With what is none, and with stores that fail.
        body["credential"] = json!({"id": "AA"});
        assert_eq!(self.page(&path, &body).await.status, 401);
        let public_key = &options.body["publicKey"];
        body["credential"] = self.anna.browser.get(public_key).await.unwrap();
        for call in [Call::Load, Call::Windows, Call::Commit] {
            self.site.store.take_down(call);
            self.page(&path, &body).await;
            self.site.store.mend();
        }
        let done = self.page(&path, &body).await;
        assert_eq!(done.status, 200, "{:?}", done.body);
        // Again, and otherwise.
        self.page(&path, &body).await;
        self.page(&path, &json!({"decision": "decline"})).await;
        done
    }

    /// Everything that there is to look at, by everyone.
    async fn visit(&mut self) {
        self.visits.fetch_add(1, Ordering::SeqCst);
        let mut reads = Vec::new();
        let mut pages: Vec<String> = ["/approve", "/approve/pending", "/signin", "/enroll"]
            .map(str::to_owned)
            .into();
        for file in ["pages.js", "approve.js", "list.js", "pages.css"] {
            pages.push(format!("/pages/{file}"));
        }
        let mut posts = Vec::new();
        for id in self.approvals.clone() {
            reads.push(format!("/approvals/{id}"));
            pages.push(format!("/approve/{id}"));
            pages.push(format!("/approve/{id}/request"));
            posts.push((format!("/approve/{id}/options"), json!({})));
            posts.push((
                format!("/approvals/{id}/response"),
                json!({"decision": "approve"}),
            ));
        }
        for id in &self.listings {
            reads.push(format!("/listings/{id}"));
            reads.push(format!("/listings/{id}/questions"));
            reads.push(format!("/offers?listing_id={id}"));
        }
        reads.extend(self.offers.iter().map(|id| format!("/offers/{id}")));
        for id in &self.deals {
            reads.push(format!("/deals/{id}"));
            reads.push(format!("/deals/{id}/events"));
        }
        for path in reads {
            for request in agents(&self.site, &path) {
                self.send("an agent", request).await;
            }
            let request = browser_get(&path, Some(&self.anna));
            self.send("the seller", request).await;
        }
        for path in pages {
            for request in agents(&self.site, &path) {
                self.send("an agent", request).await;
            }
            let request = browser_get(&path, None);
            self.send("nobody", request).await;
            let request = browser_get(&path, Some(&self.berta));
            self.send("another seller", request).await;
            let request = browser_get(&path, Some(&self.anna));
            if !path.ends_with("/request") {
                self.send("the seller", request).await;
                continue;
            }
            // The form is filled with what the agent proposed: for the seller, and in that member alone.
            let answer = send_to(&self.site.service, request).await;
            let mut body = answer.body.clone();
            if let Some(members) = body.as_object_mut() {
                members.remove("prefill");
            }
            self.seen.add("the seller's form", &body);
            self.seen
                .add("the seller's form", format!("{:?}", answer.headers));
            assert!(!answer.body.to_string().contains(&CONFIRMED.to_string()));
        }
        for (path, body) in posts {
            let request = browser_post(&path, None, &body);
            self.send("nobody", request).await;
            let request = browser_post(&path, Some(&self.berta), &body);
            self.send("another seller", request).await;
            let request = browser_post(&path, Some(&self.anna), &body);
            self.send("the seller", request).await;
        }
    }
}

/// A read by each of the agents, signed and not.
fn agents(site: &Hosted, path: &str) -> Vec<Request<Bytes>> {
    let callers: [(&Agent, Option<&str>); 5] = [
        (&site.seller, Some(SELLER_TOKEN)),
        (&site.seller, None),
        (&site.buyer, None),
        (&site.second, None),
        (&site.other, None),
    ];
    callers
        .into_iter()
        .map(|(agent, token)| {
            let mut request = get(path);
            if let Some(token) = token {
                request = with_token(request, token);
            }
            agent.signer.sign(&mut request).unwrap();
            request
        })
        .collect()
}

#[tokio::test]
async fn v11_the_floor_is_nowhere_but_with_its_seller() {
    let (logs, listening) = Logs::listen();
    let mut scene = Scene::open().await;
    let proposed = json!({"floor": {"amount": PROPOSED, "currency": CURRENCY}});

    // A listing, from what the agent proposes to what the seller confirms.
    let mut creating = new_listing();
    creating["list_price"] = json!({"amount": 9_999_999_999_u64, "currency": CURRENCY});
    creating["proposed_terms"] = proposed.clone();
    let id = scene.ask("/listings", &creating).await;
    scene.visit().await;
    scene.fill_in(&id).await;
    scene.visit().await;
    let created = scene.approve(&id).await;
    let result = &created.body["approval"]["result"];
    let listing = result["listing_id"].as_str().unwrap().to_owned();
    scene.listings.push(listing.clone());
    scene.visit().await;

    // What agents do against it. The prices next to the floor are their own guess.
    let (below, above) = (CONFIRMED - 1, CONFIRMED + 1);
    for amount in [1, below, above, above, above] {
        let offer = scene.buyer("/offers", &offer_on(&listing, amount)).await;
        let expected = if amount < CONFIRMED { 422 } else { 201 };
        assert_eq!(offer.status, expected, "{:?}", offer.body);
        if offer.status == 201 {
            scene.offers.push(offer.get("offer_id"));
        }
    }
    let [_, first, second, third] = scene.offers.clone().try_into().unwrap();
    let terms = |amount| json!({"deal_terms": deal_terms(amount)});
    let price = |amount| json!({"price": {"amount": amount, "currency": CURRENCY}});
    let counter = format!("/offers/{second}/counter");
    let reprice = format!("/listings/{listing}/price");
    assert_eq!(scene.seller(&counter, &terms(below)).await.status, 422);
    assert_eq!(scene.seller(&reprice, &price(below)).await.status, 422);
    let parked = [
        scene.ask(&counter, &terms(above)).await,
        scene.ask(&reprice, &price(above)).await,
        scene
            .ask(&format!("/offers/{first}/accept"), &json!({}))
            .await,
        scene
            .ask(&format!("/offers/{third}/accept"), &json!({}))
            .await,
    ];
    scene.visit().await;

    // Terms that are declined, that time declines, that come too late, and that replace the others.
    let set = format!("/listings/{listing}/terms");
    let proposing = json!({ "proposed_terms": proposed });
    let declined = scene.ask(&set, &proposing).await;
    scene.fill_in(&declined).await;
    let path = format!("/approvals/{declined}/response");
    let answer = scene.page(&path, &json!({"decision": "decline"})).await;
    assert_eq!(answer.status, 200);
    let replaced = scene.ask(&set, &proposing).await;
    scene.fill_in(&replaced).await;
    scene.approve(&replaced).await;
    for id in &parked {
        let done = scene.approve(id).await;
        assert_eq!(done.body["approval"]["status"], "approved");
        scene.visit().await;
    }
    let accepted = scene
        .seller(&format!("/offers/{first}/accept"), &json!({}))
        .await;
    assert_eq!(accepted.status, 409);
    let read = scene.site.seller_get(&format!("/offers/{first}")).await;
    let checkout = json!({"checkout": read.body["checkout"]});
    let deal = scene.buyer("/deals", &checkout).await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    scene.deals.push(deal.get("deal_id"));
    let ship = format!("/deals/{}/commit-to-ship", deal.get("deal_id"));
    let ship = scene.ask(&ship, &json!({})).await;
    scene.approve(&ship).await;
    scene.visit().await;

    // Another listing: its terms under a grant that was taken back, and in silence.
    let refused = scene.ask("/listings", &creating).await;
    let silent = scene.ask("/listings", &creating).await;
    for id in [&refused, &silent] {
        scene.fill_in(id).await;
    }
    let before = scene.site.grants.tokens.lock().unwrap()[SELLER_TOKEN].clone();
    scene.site.grants.revoke(SELLER_TOKEN);
    let done = scene.approve(&refused).await;
    assert_eq!(done.body["approval"]["decision"]["reason"], "grant_revoked");
    scene.visit().await;
    scene.site.grants.set(SELLER_TOKEN, before);
    scene.site.clock.advance(900);
    scene.visit().await;
    scene.site.rctp.sweep().await.unwrap();
    scene.visit().await;
    scene.site.rctp.withdraw("lst_bicycle").await.unwrap();
    drop(listening);

    let Scene { site, seen, .. } = &scene;
    seen.add("rctp", format!("{:?} {:?}", site.rctp, site.rctp.policy()));
    seen.add("rctp", site.rctp.profile());
    seen.add("the log", logs.text());
    assert!(logs.text().lines().count() > 5, "{}", logs.text());
    let units = site.store.units();
    let subjects: HashSet<Subject> = units
        .iter()
        .flat_map(|unit| unit.entries.iter().map(|entry| entry.subject.clone()))
        .collect();
    let kinds: HashSet<SubjectKind> = subjects.iter().map(|subject| subject.kind).collect();
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    for subject in &subjects {
        for entry in site.rctp.record(subject).await.unwrap() {
            fits("attestation-entry", &entry);
            seen.add("the record", &entry);
        }
    }
    for expected in [200, 201, 202, 400, 401, 403, 404, 409, 422, 503] {
        assert!(scene.statuses.contains(&expected), "{expected}");
    }
    assert!(scene.visits.load(Ordering::SeqCst) > 10);
    assert!(!seen.tells(above).is_empty(), "what is told is found");
    for number in [CONFIRMED, PROPOSED] {
        let tells = seen.tells(number);
        assert!(
            tells.is_empty(),
            "{} tell, such as {}",
            tells.len(),
            tells[0]
        );
    }

    // In the store, only what is private holds them: the approval while it waits, and the private terms.
    let holders = |number: u64| -> BTreeSet<&'static str> {
        let digits = number.to_string();
        let holds = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(&digits);
        for unit in &units {
            let rest = Unit {
                put: Vec::new(),
                ..unit.clone()
            };
            assert!(!format!("{rest:?}").contains(&digits), "{rest:?}");
            let claim = unit.claim.as_ref().map(|claim| &claim.step);
            if let Some(ClaimStep::Settle(stored) | ClaimStep::Complete(stored)) = claim {
                assert!(!holds(&stored.body), "{stored:?}");
            }
        }
        let puts = units.iter().flat_map(|unit| &unit.put);
        puts.filter(|put| holds(&put.body) || holds(put.key.id.as_bytes()))
            .map(|put| put.key.kind.as_str())
            .collect()
    };
    assert_eq!(
        holders(CONFIRMED),
        BTreeSet::from(["approval", "private_terms"])
    );
    assert_eq!(holders(PROPOSED), BTreeSet::from(["approval"]));
    for id in scene.approvals.iter().filter(|id| *id != "apr_unknown") {
        let kept = site.kept(id).await.to_string();
        for number in [CONFIRMED, PROPOSED] {
            assert!(!kept.contains(&number.to_string()), "{kept}");
        }
    }
    let private = site.stored(Kind::PrivateTerms, &listing).await.unwrap();
    assert!(String::from_utf8_lossy(&private.body).contains(&CONFIRMED.to_string()));
}
