//! Plans of the statements of stocks.

use super::*;
use crate::links::Links;
use crate::options::Options;
use crate::plumbing::Arg;
use crate::stock::Statements;

/// However many records are kept. A filter behind the index would have locked the rows that it
/// drops.
#[tokio::test]
async fn a_sweep_looks_by_index_at_what_is_over() {
    let server = MariaDbServer::start();
    let options = Options::MySql(Box::new(server.url().parse().unwrap()));
    let statements = Statements::of(&options);
    let mut link = Links::new(options, 1).take().await.unwrap();
    link.run(&statements.tables).await.unwrap();
    let never = "7258118400000000";
    let kept = format!(
        "INSERT INTO lock_stock_operation SELECT 'swept', CONCAT('kept:', seq), IF(seq % 2, 'S', 'H'), \
         1 - seq % 2, 1, '0:1', {never}, IF(seq % 2, {never}, NULL) FROM seq_1_to_10000"
    );
    link.run(&kept).await.unwrap();
    link.run("ANALYZE TABLE lock_stock_operation").await.unwrap();
    let args = [Arg::Text("swept"), Arg::Int(10)];
    for statement in [&statements.overdue, &statements.purge] {
        let plan = link.rows(&format!("EXPLAIN {statement}"), &args).await.unwrap();
        let [kind, key, rows, extra] = [3, 5, 8, 9].map(|at| plan[0].maybe_text(at).unwrap().unwrap());
        let by_index = kind == "range" && key.starts_with("lock_stock_operation_") && rows == "1";
        assert!(by_index && extra == "Using index condition", "{kind} {key} {rows} {extra}: {statement}");
    }
}
