//! Plans of the statements of stocks.

use super::*;
use crate::links::Links;
use crate::options::Options;
use crate::plumbing::{Arg, filled, literal};
use crate::stock::Statements;

/// However many records are kept.
#[tokio::test]
async fn a_sweep_looks_by_index_at_what_is_over() {
    let options = Options::Postgres(Box::new(SERVER.url().parse().unwrap()));
    let statements = Statements::of(&options);
    let mut link = Links::new(options, 1).take().await.unwrap();
    link.run(&statements.tables).await.unwrap();
    let kept = "INSERT INTO lock_stock_operation \
                SELECT 'swept', 'kept:' || n, CASE n % 2 WHEN 0 THEN 'H' ELSE 'S' END, 1 - n % 2, 1, '0:1', \
                7258118400000000, CASE n % 2 WHEN 1 THEN 7258118400000000 END FROM generate_series(1, 10000) n";
    link.run(kept).await.unwrap();
    link.run("ANALYZE lock_stock_operation").await.unwrap();
    let args = [Arg::Text("swept"), Arg::Int(10)];
    for (statement, condition) in [(&statements.overdue, "deadline <"), (&statements.purge, "kept_until <=")]
    {
        let plan = link.rows(&format!("EXPLAIN {}", filled(statement, &args, literal)), &[]).await.unwrap();
        let plan: Vec<_> = plan.iter().map(|row| row.maybe_text(0).unwrap().unwrap()).collect();
        let by_index = plan.iter().any(|line| line.contains("Index Cond") && line.contains(condition));
        assert!(by_index, "{plan:#?}");
    }
}
