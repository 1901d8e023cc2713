package org.apache.spark.sql.redisstate

import java.io.File
import java.lang.reflect.InvocationTargetException
import java.net.URLClassLoader

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.redisstate.conf.{OptionTable, SparkMinor}

import org.redisstate.core.errors.ConfigException

/** The jar of another Spark minor names the right one, whatever differs between the two. */
class SparkVersionSuite extends AnyFunSuite {
  private val ours = Seq("org.redisstate.", "org.apache.spark.sql.redisstate.")

  /** Finds our classes in one jar, and all others where this suite has them. */
  private final class OtherJar(jar: File)
      extends URLClassLoader(Array(jar.toURI.toURL), getClass.getClassLoader) {
    override def loadClass(name: String, resolve: Boolean): Class[_] =
      if (ours.exists(name.startsWith)) Option(findLoadedClass(name)).getOrElse(findClass(name))
      else super.loadClass(name, resolve)

    override def getResource(name: String): java.net.URL =
      Option(findResource(name)).getOrElse(super.getResource(name))
  }

  private def jarFor(minor: String): File = {
    val folder = Iterator
      .iterate(new File(".").getCanonicalFile)(_.getParentFile)
      .takeWhile(_ != null)
      .map(new File(_, "redis_state/jars"))
      .find(_.isDirectory)
      .getOrElse(fail("redis_state/jars is not above the working folder"))
    folder.listFiles().find(_.getName.startsWith(s"redis-state-spark-$minor")).getOrElse(
      fail(s"there is no jar for Spark $minor: run `make build`"))
  }

  private def failureOf(loader: ClassLoader, name: String): Throwable =
    intercept[InvocationTargetException](
      loader.loadClass(name).getConstructor().newInstance()).getCause

  for (name <- Seq("RedisStateStoreProvider", "RedisStateQueryListener")) {
    test(s"$name of another minor's jar names the right jar") {
      val running = SparkMinor.BuiltFor
      assert(SPARK_VERSION.startsWith(running))
      OptionTable.sparkMinors.filter(_ != running).foreach { other =>
        val loader = new OtherJar(jarFor(other))
        try {
          val failure = failureOf(loader, s"org.apache.spark.sql.redisstate.$name")
          assert(failure.getMessage.startsWith("[REDIS_CONFIG]"), failure)
          assert(failure.getMessage.contains(s"built for Spark $other"))
          assert(failure.getMessage.contains(s"redis-state-spark-${running}_2.13"))
        } finally loader.close()
      }
    }
  }

  test("a version without a jar gets the list of those with one") {
    val message = intercept[ConfigException](SparkVersion.check("3.5.1")).getMessage
    assert(message.contains("Spark 3.5.1 runs"))
    assert(message.contains(OptionTable.sparkMinors.mkString(" or ")))
  }
}
