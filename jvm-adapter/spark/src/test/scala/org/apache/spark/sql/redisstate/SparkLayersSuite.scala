package org.apache.spark.sql.redisstate

import scala.jdk.CollectionConverters._

import com.tngtech.archunit.core.domain.{JavaClass, JavaClasses}
import com.tngtech.archunit.core.importer.{ClassFileImporter, ImportOption, Location}
import com.tngtech.archunit.library.Architectures.layeredArchitecture
import com.tngtech.archunit.library.dependencies.{SliceAssignment, SliceIdentifier}
import com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices
import org.scalatest.funsuite.AnyFunSuite

/** Imports of this module's packages run one way, on every Spark minor; see `LayersSuite`. */
final class SparkLayersSuite extends AnyFunSuite {
  private val root = "org.apache.spark.sql.redisstate"

  /** Classes under test, in a jar or a folder, without the tests. */
  private lazy val classes: JavaClasses = {
    val built = classOf[RedisStateStoreProvider].getProtectionDomain.getCodeSource.getLocation
    val isBuilt: ImportOption = (location: Location) => location.contains(built.getPath)
    new ClassFileImporter().withImportOption(isBuilt).importPackages(root)
  }

  /** Layer of the classes that users name in confs; may import all others. */
  private val top = "root"

  /** Each may use those beside it and those of the rows below. */
  private val layers = Seq(
    Seq(top),
    Seq("move"),
    Seq("move.bootstrap", "move.rescale"),
    Seq("move.checkpoint"),
    Seq("move.engine"),
    Seq("query", "copies", "batches"),
    Seq("stores.joins"),
    Seq("stores"),
    Seq("rows", "checkpoint", "executor"),
    Seq("places"),
    Seq("errors", "conf")
  )

  private def packageOf(one: JavaClass): String =
    Option(one.getPackageName.stripPrefix(root).stripPrefix(".")).filter(_.nonEmpty).getOrElse(top)

  test("the packages are those of the layers") {
    assert(classes.asScala.map(packageOf).toSet == layers.flatten.toSet)
  }

  test("no package uses one of a layer above") {
    val named = layers.flatten.foldLeft(layeredArchitecture().consideringOnlyDependenciesInLayers) {
      case (rule, `top`) => rule.layer(top).definedBy(root)
      case (rule, name) => rule.layer(name).definedBy(s"$root.$name")
    }
    val rule = layers.flatten.foldLeft(named) { (rule, name) =>
      layers.takeWhile(!_.contains(name)).flatten match {
        case Seq() => rule.whereLayer(name).mayNotBeAccessedByAnyLayer()
        case above =>
          val beside = layers.find(_.contains(name)).get.filter(_ != name)
          rule.whereLayer(name).mayOnlyBeAccessedByLayers((above ++ beside): _*)
      }
    }
    rule.check(classes)
  }

  test("packages are in no circle") {
    slices().assignedFrom(slicedBy("packages")(packageOf)).should().beFreeOfCycles().check(classes)
  }

  test("files are in no circle") {
    val byFile = slicedBy("files")(one => packageOf(one) + "/" + one.getSource.get.getFileName.get)
    slices().assignedFrom(byFile).should().beFreeOfCycles().check(classes)
  }

  private def slicedBy(what: String)(name: JavaClass => String): SliceAssignment =
    new SliceAssignment {
      override def getDescription: String = what

      override def getIdentifierOf(used: JavaClass): SliceIdentifier = {
        val one = used.getBaseComponentType
        if (!one.getPackageName.startsWith(root)) SliceIdentifier.ignore()
        else SliceIdentifier.of(name(one))
      }
    }
}
