package org.apache.spark.sql.redisstate.executor

import scala.collection.immutable.ListMap

import org.json4s.JObject
import org.json4s.jackson.JsonMethods.{compact, render}
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.executor.RecentFigures.{Figures, WindowNs}

/** Windows of what providers did, as the heartbeat reports them. */
class RecentFiguresSuite extends AnyFunSuite {
  private def commits(count: Long, times: Long*): Figures =
    Figures(ListMap("commits" -> count, "loads" -> 0L), times)

  private def text(report: JObject): String = compact(render(report))

  private def report(recent: RecentFigures, now: Figures, ns: Long): String =
    text(recent.report(now, now.numbers("commits") + 10, retries = 3, ns))

  test("a window begins with the first provider, and leaves out what is 0") {
    val recent = new RecentFigures(0)
    recent.begin()
    assert(report(recent, commits(2, 1, 0, 4, 0), 1000000) ==
      """{"ms":1,"commits":2,"providers":1,"versions":2,"openTimes":[1,0,4]}""")
  }

  test("providers of one partition that follow each other add up") {
    val recent = new RecentFigures(0)
    recent.begin()
    assert(report(recent, commits(2, 1), 1000000).contains(""""commits":2"""))
    recent.end(commits(2, 1))
    recent.begin()
    val members = text(recent.report(commits(1, 1), version = 13, retries = 3, 2000000))
    assert(members == """{"ms":2,"commits":3,"providers":2,"versions":3,"openTimes":[2]}""")
  }

  test("what is older than two windows is not reported any more") {
    val recent = new RecentFigures(0)
    recent.begin()
    report(recent, commits(1), 1)
    assert(report(recent, commits(5), WindowNs).contains(""""commits":5"""))
    assert(report(recent, commits(7), WindowNs + 1).contains(""""commits":7"""))
    assert(report(recent, commits(9), 2 * WindowNs) ==
      """{"ms":300000,"commits":4,"versions":4}""")
  }
}
