//! The page of the example `flash-sale` in a real browser: `cargo xtask test page`.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lock_tests::browser::{Area, Browser, Picture, Scheme, http};
use lock_tests::eventually_blocking;
use lock_tests::process::Process;
use serde_json::Value;

/// Time-out for something quick, on a busy two-core machine.
const SOON: Duration = Duration::from_secs(60);
/// Sizes of a phone and of a desktop window.
const SIZES: [(u32, u32); 2] = [(360, 1000), (1280, 1000)];

/// Returns the path of the example, which is built unless `LOCK_TESTS_FLASH_SALE` has the path.
fn program() -> PathBuf {
    if let Some(built) = std::env::var_os("LOCK_TESTS_FLASH_SALE") {
        return built.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--example", "flash-sale", "--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo");
    assert!(output.status.success(), "the example does not build");
    let text = String::from_utf8(output.stdout).expect("text");
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_it = |message: &Value| message["target"]["name"] == "flash-sale";
    let mut found =
        messages.filter(of_it).filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    found.next().expect("cargo says where the example is")
}

struct Shop {
    program: PathBuf,
    server: Process,
    port: u16,
}

impl Shop {
    fn open() -> Self {
        use std::io::{BufRead, BufReader};

        let program = program();
        let mut command = Command::new(&program);
        command
            .args(["serve", "--port", "0", "--sale", "page"])
            .env_remove("LOCK_URL")
            .stdout(Stdio::piped());
        let mut server = Process::spawn(&mut command, None).expect("the example starts");
        let mut line = String::new();
        BufReader::new(server.stdout().expect("its output")).read_line(&mut line).expect("a line");
        let port = line.split_once("http://127.0.0.1:").and_then(|(_, rest)| rest.split_once('/'));
        let port =
            port.and_then(|(port, _)| port.parse().ok()).unwrap_or_else(|| panic!("no address in {line:?}"));
        Self { program, server, port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sends `requests` orders of many buyers, and returns when all are answered.
    fn load(&self, requests: u32) {
        let mut command = Command::new(&self.program);
        command.args(["load", "--target", &self.url(), "--over", "0", "--requests", &requests.to_string()]);
        let mut buyers = Process::spawn(command.stdout(Stdio::null()), None).expect("the buyers start");
        assert!(buyers.wait(2 * SOON).success());
    }

    fn state(&self) -> Value {
        let (status, body) = http(self.port, "GET", "/state", "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }
}

/// Reads the numbers that the page shows.
const SHOWN: &str = r#"
const number = id => Number(document.getElementById(id).textContent.replaceAll(",", ""));
const tanks = [...document.querySelectorAll("ol li")];
return {
  phase: document.getElementById("phase").textContent,
  available: number("available"), held: number("held"), sold: number("sold"),
  segments: tanks.map(tank => Number(tank.querySelector("span").textContent)),
  labels: tanks.map(tank => tank.querySelector(".tank").ariaLabel),
  balanced: document.getElementById("balance").dataset.good,
  counts: Object.fromEntries(["requests", "sold", "refused", "merged", "repeated", "cancelled", "given_back"]
    .map(name => [name, number("count-" + name)])),
};"#;

/// Waits until the page shows the same as the service.
fn agree(browser: &mut Browser, shop: &Shop) -> Value {
    let mut shown = Value::Null;
    let same = |browser: &mut Browser, shown: &mut Value| {
        *shown = browser.script(SHOWN);
        let state = shop.state();
        let each = state["segments"].as_array().expect("segments").iter();
        let left: Vec<Value> = each.map(|segment| segment["available"].clone()).collect();
        let counts = shown["counts"].as_object().expect("counts");
        ["available", "held", "sold"].iter().all(|name| shown[*name] == state[*name])
            && shown["segments"] == Value::from(left)
            && counts.iter().all(|(name, count)| *count == state["counts"][name])
    };
    eventually_blocking(|| same(browser, &mut shown), SOON);
    shown
}

/// Reads the areas of the tanks, and the colours of their contents.
const TANKS: &str = r#"
const tanks = [...document.querySelectorAll(".tank")];
const colour = element => getComputedStyle(element).backgroundColor.match(/\d+/g).slice(0, 3).map(Number);
return {
  areas: tanks.map(tank => tank.getBoundingClientRect()).map(({x, y, width, height}) => [x, y, width, height]),
  available: colour(tanks[0].querySelector(".available")), sold: colour(tanks[0]),
  wide: document.documentElement.scrollWidth, high: document.documentElement.scrollHeight,
};"#;

const GROUND: &str =
    "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number);";

fn colour(value: &Value) -> [u8; 3] {
    serde_json::from_value(value.clone()).expect("a colour")
}

/// Returns the parts of the tanks that have the colours of available and of sold units.
fn levels(browser: &mut Browser, picture: &Picture) -> (f64, f64) {
    let tanks = browser.script(TANKS);
    assert!(tanks["wide"].as_u64() <= Some(picture.width.into()), "nothing is cut off at the right: {tanks}");
    let (available, sold) = (colour(&tanks["available"]), colour(&tanks["sold"]));
    let areas: Vec<[f64; 4]> = serde_json::from_value(tanks["areas"].clone()).expect("areas");
    assert_eq!(areas.len(), 10);
    let shares = areas.iter().map(|[x, y, width, height]| {
        // The rounded corners are left out.
        let inner = |at: &f64, size: &f64| ((at + 0.2 * size) as u32, (0.6 * size) as u32);
        let ((x, width), (y, height)) = (inner(x, width), (*y as u32, *height as u32));
        let area = Area { x, y, width, height };
        assert!(y + height <= picture.height, "the tanks are in the picture");
        (picture.share(area, available), picture.share(area, sold))
    });
    let (a, s) = shares.fold((0.0, 0.0), |(a, s), (available, sold)| (a + available, s + sold));
    (a / areas.len() as f64, s / areas.len() as f64)
}

/// Checks the page at all sizes and in both colour schemes; `left` is the available part of the
/// stock.
fn look(browser: &mut Browser, moment: &str, left: f64) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("flash-sale");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut dark = Vec::new();
    for (width, height) in SIZES {
        for scheme in [Scheme::Light, Scheme::Dark] {
            browser.size(width, height);
            browser.scheme(scheme);
            let picture = browser.shot();
            let name = format!("{moment}-{width}-{}.png", scheme.name());
            std::fs::write(folder.join(&name), &picture.png).expect("a file");
            assert_eq!((picture.width, picture.height), (width, height));
            assert!(picture.colours() > 20, "{name} is blank: {} colours", picture.colours());
            let (available, sold) = levels(browser, &picture);
            assert!(
                (available - left).abs() < 0.05,
                "{name}: {available} of the tanks is full, and should be {left}"
            );
            assert!(
                (sold - (1.0 - left)).abs() < 0.05,
                "{name}: {sold} of the tanks is empty, {left} is left"
            );
            let ground = colour(&browser.script(GROUND));
            let edge = Area { x: 0, y: 0, width: 4, height };
            assert!(picture.share(edge, ground) > 0.99, "{name}: the edge is not the ground of the page");
            dark.push(ground.iter().all(|part| *part < 0x60));
        }
    }
    assert_eq!(dark, [false, true, false, true], "the page follows the colour scheme");
}

fn share_left(shown: &Value) -> f64 {
    shown["available"].as_f64().expect("a number") / 1000.0
}

#[test]
fn the_page_shows_a_sale_from_its_first_unit_to_its_last() {
    let mut shop = Shop::open();
    let mut browser = Browser::start();
    browser.size(SIZES[0].0, SIZES[0].1);
    browser.open(&format!("{}/", shop.url()));

    let shown = agree(&mut browser, &shop);
    assert_eq!((&shown["phase"], &shown["available"]), (&"open".into(), &1000.into()), "{shown}");
    look(&mut browser, "open", 1.0);

    // Some buyers; then nobody for a while, so that the picture agrees with the numbers.
    shop.load(150);
    let shown = agree(&mut browser, &shop);
    assert_eq!(
        (&shown["phase"], &shown["held"], &shown["balanced"]),
        (&"selling".into(), &0.into(), &"true".into())
    );
    let left = share_left(&shown);
    assert!((0.1..0.9).contains(&left), "{shown}");
    look(&mut browser, "selling", left);

    shop.load(2000);
    let shown = agree(&mut browser, &shop);
    assert_eq!(
        (&shown["phase"], &shown["sold"], &shown["balanced"]),
        (&"sold out".into(), &1000.into(), &"true".into())
    );
    assert_eq!(shown["segments"], Value::from(vec![0; 10]));
    for (index, label) in shown["labels"].as_array().expect("labels").iter().enumerate() {
        let label = label.as_str().expect("a label");
        assert!(label.starts_with(&format!("Segment {index}: 0 available, 0 reserved, ")), "{label}");
    }
    look(&mut browser, "sold-out", 0.0);

    shop.server.terminate();
    assert!(shop.server.wait(SOON).success());
    let over = "return document.getElementById('name').textContent";
    eventually_blocking(
        || browser.script(over).as_str().is_some_and(|text| text.ends_with("has ended")),
        SOON,
    );
    assert_eq!(browser.script(SHOWN)["sold"], 1000, "the last numbers stay");
    assert_eq!(browser.console(), [""; 0]);
}
